"""On-policy distillation loss: match the frozen target's next-token distributions on the student's own answers.

L = 1/M Σ D(sg p(· | x, y_<t), pθ(· | x, y_<t)) over the M tokens of a batch's answers, where p is the target, D the
distance of :class:`specbench.training.objectives.distances.DistanceOptions`, and y ~ pθ(· | x) without a gradient
through the sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from specbench.training.objectives.distances import Measure
from specbench.training.objectives.frozen import Frozen, Labels
from specbench.training.objectives.losses import mean_of_rows
from specbench.training.objectives.student import Student
from specbench.training.recipe import Text


class DistillationLesson(nn.Module):
    """A method's lesson for batches of texts, and distillation for batches of the student's own answers.

    Args:
        lesson: the method's lesson.
        own: indices of texts -> their prompts with the student's own answers.
    """

    def __init__(
        self, lesson: nn.Module, model: Any, frozen: Frozen, own: Callable[[Tensor], list[Text]], distance: Measure
    ) -> None:
        super().__init__()
        self.lesson = lesson
        self._student, self._frozen, self._own, self._distance = Student(model), frozen, own, distance

    def forward(self, own: Tensor | None = None, **batch: Tensor) -> dict[str, Tensor]:
        """Return the loss of one step.

        Args:
            own: int64 [B] indices of the texts whose prompts the student has answered; None for a batch of texts.

        Returns:
            For a batch of texts, the result of the method's lesson. For own answers ``loss``, repeated as
            ``on_policy``, and ``agrees``, the share of rows where student and target have the same best token.
        """
        if own is None:
            found: dict[str, Tensor] = self.lesson(**batch)
            return found
        texts = self._own(own)
        ids = pad_sequence([torch.tensor([*text.prompt, *text.answer]) for text in texts], batch_first=True)
        ids = ids.to(own.device)
        labels = self._frozen.labels(lambda target: target.text_states(ids))
        states = self._student.text_states(ids).flatten(0, 1)
        divergence, agrees = self._compared(states, answer_rows(texts, ids.shape[1]).to(own.device), labels)
        loss = divergence.mean()
        return {"loss": loss, "on_policy": loss.detach(), "agrees": mean_of_rows(agrees)}

    def _compared(self, states: Tensor, rows: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
        """Return for each row the distance and whether student and target have the same best token.

        Rows go in parts, so that the scores of only some of them are in memory at a time.
        """

        def part(states: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            student, teacher = self._student.scores(states[rows]), labels(rows)
            return self._distance(student, teacher), student.argmax(-1) == teacher.argmax(-1)

        step = max(1, self._student.rows_at_once // 2)
        if len(rows) <= step:
            return part(states, rows)
        parts = [checkpoint(part, states, some, use_reentrant=False) for some in rows.split(step)]
        divergence, agrees = map(torch.cat, zip(*parts, strict=True))
        return divergence, agrees


def answer_rows(texts: Sequence[Text], length: int) -> Tensor:
    """Return the rows of [B × length] that predict the answers' tokens: int64."""
    starts = [at * length + len(text.prompt) - 1 for at, text in enumerate(texts)]
    return torch.cat([torch.arange(start, start + len(text.answer)) for start, text in zip(starts, texts, strict=True)])
