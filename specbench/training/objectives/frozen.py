"""Provide the scores of the target as it was before training, for losses that use them as labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from specbench.common import option
from specbench.training.objectives.distances import DistanceOptions
from specbench.training.objectives.student import Student

#: Rows, int64 [M] -> the target's next-token scores [M, V], without gradient.
Labels = Callable[[Tensor], Tensor]


class LabelOptions(DistanceOptions):
    """Options of recipes whose clean rows learn the texts' next tokens."""

    labels: Literal["tokens", "target"] = option(
        "tokens",
        help="what rows of a text learn: its tokens (as published), or the target's distributions before training",
    )


class Frozen:
    """The target as it was before training. Not a module, so that checkpoints do not save it.

    Args:
        before: context manager that yields the transformers model without its adapter, or None where all its weights
            are trained.
        copied: copy of the target for the latter case.
    """

    def __init__(self, before: Callable[[], AbstractContextManager[Any]], copied: Any = None) -> None:
        self._before = before
        self._copied = copied.eval().requires_grad_(False) if copied is not None else None
        self._asked: tuple[Any, Student] | None = None

    @torch.no_grad()
    def labels(self, states: Callable[[Student], Tensor]) -> Labels:
        """Return the target's labels of a batch. Call this before the student's forward: it swaps the model's weights.

        Args:
            states: runs the batch through the target and returns last states [B, S, H]; labels index their B × S rows.
        """
        with self._before() as target:
            model: Any = self._copied if target is None else target
            training = model.training
            model.eval()
            try:
                found = states(self._as_asked(model)).flatten(0, 1)
            finally:
                model.train(training)
            head = model.get_output_embeddings()
        head = getattr(head, "base_layer", head)
        dtype = head.weight.dtype  # lower than in the forward if frozen weights are kept in bfloat16
        return lambda rows: head(found[rows].to(dtype)).detach()

    def _as_asked(self, model: Any) -> Student:
        if self._asked is None or self._asked[0] is not model:
            self._asked = model, Student(model)
        return self._asked[1]
