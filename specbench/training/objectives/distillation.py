"""Distillation of the student's own answers: behind each of their tokens it learns what the frozen target says.

L = 1/M Σ D(sg p(· | x, y_<t), pθ(· | x, y_<t)), y ~ pθ(· | x) without a gradient through the draw, p the target, D the
distance of :class:`specbench.training.objectives.distances.DistanceOptions`, over the M tokens of a batch's answers.
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
    """A method's lesson for batches of texts, and distillation for those of the student's own answers.

    Args:
        own: indices of texts -> their prompts with the student's own answers.
    """

    def __init__(
        self, lesson: nn.Module, model: Any, frozen: Frozen, own: Callable[[Tensor], list[Text]], distance: Measure
    ) -> None:
        super().__init__()
        self.lesson = lesson
        self._student, self._frozen, self._own, self._distance = Student(model), frozen, own, distance

    def forward(self, own: Tensor | None = None, **batch: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        Args:
            own: int64 [B] indices of the texts whose prompts the student has answered; None: of texts.

        Returns:
            What the method's lesson does; of own answers ``loss``, which is also ``on_policy``, and ``agrees``, the
            share of tokens whose best one is the target's.
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
        """Of each row the distance, and whether both have the same best token; scores of some rows exist at a time."""

        def part(states: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            said, heard = self._student.scores(states[rows]), labels(rows)
            return self._distance(said, heard), said.argmax(-1) == heard.argmax(-1)

        step = max(1, self._student.rows_at_once // 2)
        if len(rows) <= step:
            return part(states, rows)
        parts = [checkpoint(part, states, some, use_reentrant=False) for some in rows.split(step)]
        divergence, agrees = map(torch.cat, zip(*parts, strict=True))
        return divergence, agrees


def answer_rows(texts: Sequence[Text], length: int) -> Tensor:
    """Rows of [B × length] that foresee the answers' tokens: int64."""
    starts = [at * length + len(text.prompt) - 1 for at, text in enumerate(texts)]
    return torch.cat([torch.arange(start, start + len(text.answer)) for start, text in zip(starts, texts, strict=True)])
