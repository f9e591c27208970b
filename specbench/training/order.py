"""Order of the texts of a training: shuffled at every visit, neighbours in a batch of about one length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

_POOL = 16  # batches that are sorted by length together: shuffled enough, and little of a batch is filling


class Order(Sampler[tuple[int, int]]):
    """(visit, index) of every text, decided by seed and visit alone, so that a resumed training meets the same.

    Args:
        lengths: tokens of each text.
        batch: texts that are packed together.
        seed: of the shuffling.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = lengths, batch, seed
        self._visit = 0

    def set_epoch(self, epoch: int) -> None:
        """Told by the loop before each visit, from 0."""
        self._visit = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self._visit, index) for index in self.of(self._visit))

    def of(self, visit: int) -> list[int]:
        """The texts of one visit."""
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
        rest = [batch for batch in batches if len(batch) < self._batch]  # last, or it would shift all behind it
        return [index for batch in (*whole, *rest) for index in batch]
