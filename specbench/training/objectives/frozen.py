"""Frozen target: the model as it was before training, for losses that ask what it says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from specbench.common import option
from specbench.training.objectives.distances import DistanceOptions
from specbench.training.objectives.student import Student

#: Rows, int64 [M] -> the target's scores of their next tokens [M, V], which have no gradient.
Labels = Callable[[Tensor], Tensor]


class LabelOptions(DistanceOptions):
    """Options of recipes whose clean rows learn the texts' next tokens."""

    labels: Literal["tokens", "target"] = option(
        "tokens",
        help="that rows of a text learn: its tokens, as published, or what the target says of them before training",
    )


class Frozen:
    """The target as it was before training, what an adapter is laid on, or a copy. No module: none is saved.

    Args:
        before: gives the transformers model without what was learnt, or None where all its weights learn.
        copied: the target itself, for that case.
    """

    def __init__(self, before: Callable[[], AbstractContextManager[Any]], copied: Any = None) -> None:
        self._before = before
        self._copied = copied.eval().requires_grad_(False) if copied is not None else None
        self._asked: tuple[Any, Student] | None = None

    @torch.no_grad()
    def labels(self, states: Callable[[Student], Tensor]) -> Labels:
        """What the target says of a batch. To be asked before the student: other weights are in its place meanwhile.

        Args:
            states: brings the batch through the target: last states [B, S, H], whose B × S rows are then asked for.
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
        dtype = head.weight.dtype  # which may be lower again by now
        return lambda rows: head(found[rows].to(dtype)).detach()

    def _as_asked(self, model: Any) -> Student:
        if self._asked is None or self._asked[0] is not model:
            self._asked = model, Student(model)
        return self._asked[1]
