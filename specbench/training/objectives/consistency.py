"""Compute the loss of CLLM and Jacobi Forcing on a batch of packed texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from specbench.training.objectives.attention_mask import AttentionMask
from specbench.training.objectives.distances import Measure, forward_kl
from specbench.training.objectives.frozen import Frozen
from specbench.training.objectives.losses import Pairs, autoregressive, evaluate_losses, mean_of_rows
from specbench.training.objectives.packing import Packed
from specbench.training.objectives.student import Student


class ConsistencyLesson(nn.Module):
    """loss = consistency + λ · autoregressive, from one forward over noisy and clean streams.

    Args:
        model: a transformers causal LM, with or without an adapter, whose attention takes a mask of blocks; the caller
            decides which parameters are trained.
        objective: chooses the pairs of rows that the consistency loss compares.
        window: blocks per window, see :class:`specbench.training.objectives.attention_mask.AttentionMask`.
        ar_weight: λ; 0 disables the autoregressive loss.
        frozen: target whose distributions are the labels of clean rows; None: the labels are the text's tokens.
    """

    def __init__(
        self,
        model: Any,
        objective: Callable[[Packed], Pairs],
        *,
        window: int | None,
        ar_weight: float,
        include_prompt: bool = False,
        smoothing: float = 0.0,
        distance: Measure = forward_kl,
        frozen: Frozen | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._student = Student(model)
        self._objective, self._mask = objective, partial(AttentionMask, window=window)
        self._ar_weight, self._include_prompt, self._smoothing = ar_weight, include_prompt, smoothing
        self._distance, self._frozen = distance, frozen

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """Return the loss of one step.

        Returns:
            Scalars: ``loss``; ``consistency`` and ``autoregressive``, its two parts before λ; ``agrees``, the share of
            noisy rows with the same best token as their teacher; ``accuracy``, the share of clean rows whose best
            token is the text's next one.
        """
        packed = Packed(**batch)
        pairs, targets = self._objective(packed), autoregressive(packed, self._include_prompt)
        labels = self._frozen.labels(lambda target: target.states(packed, self._mask)) if self._frozen else None
        states = self._student.states(packed, self._mask).flatten(0, 1)
        scores, at_once = self._student.scores, self._student.rows_at_once
        found = evaluate_losses(scores, states, pairs, targets, self._smoothing, at_once, self._distance, labels)
        consistency = (found.divergence * pairs.shares).sum()
        surprise = (found.surprise * targets.shares).sum()
        return {
            "loss": consistency + self._ar_weight * surprise if self._ar_weight else consistency,
            "consistency": consistency.detach(),
            "autoregressive": surprise.detach(),
            "agrees": mean_of_rows(found.agrees),
            "accuracy": mean_of_rows(found.right),
        }
