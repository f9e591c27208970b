"""Choose the order of a training's texts: shuffled in every visit, with texts of similar length in a batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from torch.utils.data import Sampler

from specbench.training.recipe import LoopOptions

_POOL = 16  # batches sorted by length together: the order stays random and batches need little padding


class Order(Sampler[tuple[int, int]]):
    """(visit, index) of every text. Depends only on seed and visit, so a resumed training has the same order."""

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = lengths, batch, seed
        self._visit = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the visit, from 0; transformers' loop calls this before each one."""
        self._visit = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self._visit, index) for index in self.of(self._visit))

    def of(self, visit: int) -> list[int]:
        """Return the indices of the texts in the order of one visit."""
        draw = random.Random(f"{self._seed}/{visit}")
        texts = list(range(len(self._lengths)))
        draw.shuffle(texts)
        if self._batch == 1:
            return texts
        pool = _POOL * self._batch
        batches = [
            pooled[at : at + self._batch]
            for start in range(0, len(texts), pool)
            for pooled in [sorted(texts[start : start + pool], key=self._lengths.__getitem__)]
            for at in range(0, len(pooled), self._batch)
        ]
        whole = [batch for batch in batches if len(batch) == self._batch]
        draw.shuffle(whole)
        rest = [batch for batch in batches if len(batch) < self._batch]  # last, or it would shift later batches
        return [index for batch in (*whole, *rest) for index in batch]


class Batches:
    """Batches of each step of a one-process training, as in :func:`~specbench.training.loop.trainer.fit`."""

    def __init__(self, texts: Sequence[Any], size: Callable[[Any], int], options: LoopOptions, seed: int) -> None:
        self._order = Order([size(text) for text in texts], options.batch, seed)
        self._batch, self._together = options.batch, options.batch * options.accumulation
        self._order_of = lru_cache(maxsize=1)(self._order.of)  # consecutive steps are mostly of one visit

    def __call__(self, step: int) -> list[list[tuple[int, int]]]:
        """Return (visit, index) of the texts in each batch of a step, counted from 0."""
        visit, place = divmod(step, math.ceil(len(self._order) / self._together))
        order = self._order_of(visit)
        met = [(visit, index) for index in order[place * self._together : (place + 1) * self._together]]
        return [met[at : at + self._batch] for at in range(0, len(met), self._batch)]
