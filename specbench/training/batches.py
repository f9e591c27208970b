"""Batches: which texts each step of a training meets, known before it comes to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from specbench.training.order import Order
from specbench.training.recipe import LoopOptions


class Batches:
    """The batches of each step of a training of one process, as :func:`specbench.training.loop.fit` meets them.

    Args:
        texts: to learn from.
        size: as of :class:`specbench.training.loop.Course`.
        options: of the training.
        seed: of the order.
    """

    def __init__(self, texts: Sequence[Any], size: Callable[[Any], int], options: LoopOptions, seed: int) -> None:
        self._order = Order([size(text) for text in texts], options.batch, seed)
        self._batch, self._together = options.batch, options.batch * options.accumulation
        self._visit, self._met = -1, list[int]()

    def __call__(self, step: int) -> list[list[tuple[int, int]]]:
        """(visit, index) of the texts of each batch of a step, from 0."""
        visit, place = divmod(step, math.ceil(len(self._order) / self._together))
        if visit != self._visit:
            self._visit, self._met = visit, self._order.of(visit)
        met = [(visit, index) for index in self._met[place * self._together : (place + 1) * self._together]]
        return [met[at : at + self._batch] for at in range(0, len(met), self._batch)]
