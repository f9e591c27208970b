"""Sequences that share the KV cache, and how many tokens each has cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from specbench.engine.cache import StaticCache
from specbench.engine.pack import FillBatch


class Slots:
    """The slots of a cache.

    Args:
        capacity: most tokens of a sequence; the cache has scratch cells after them.

    Attributes:
        lengths: number of cached tokens of each slot; None if the slot is free.
        texts: committed tokens of each slot if steps need them: with penalties or a grammar, and for a model with
            recurrent layers, whose states can only be made again from the text; empty otherwise.
        prompts: number of tokens of each slot's prompt; the tokens after them are output.
    """

    def __init__(self, cache: StaticCache, count: int, capacity: int) -> None:
        self.cache, self.capacity = cache, capacity
        self.lengths: list[int | None] = [None] * count
        self.texts: list[list[int]] = [[] for _ in range(count)]
        self.prompts = [0] * count
        self._noise = [0] * count  # leading cells of each slot that hold noise

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def cached(self) -> list[int]:
        """Number of cached tokens of each slot, 0 for a free slot."""
        return [length or 0 for length in self.lengths]

    def length(self, slot: int) -> int:
        """Number of cached tokens of an occupied slot."""
        length = self.lengths[slot]
        if length is None:
            raise ValueError(f"slot {slot} is free")
        return length

    def alloc(self) -> int:
        """Occupy the lowest free slot, so that occupied slots stay together at the front."""
        slot = self.lengths.index(None)
        self.restart(slot)
        return slot

    def restart(self, slot: int) -> None:
        """Drop all tokens of a slot."""
        self.lengths[slot], self.texts[slot] = 0, []
        if self.cache.recurrent is not None:
            self.cache.recurrent.clear(slot)

    def free(self, slot: int) -> None:
        """Release a slot; the next sequence overwrites its cells."""
        self.lengths[slot] = None

    def rewind(self, slot: int, length: int) -> None:
        """Drop all but the first ``length`` tokens of an occupied slot."""
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"slot {slot} holds {self.length(slot)} tokens, not {length}")
        self.lengths[slot] = length
        del self.texts[slot][length:]

    def assume(self, slot: int, length: int) -> None:
        """Treat the first ``length`` cells of an occupied slot as filled, without a prefill, to time steps there.

        The cost of a step depends on how many tokens are cached, not on which. Cells that are assumed for the first
        time get noise, since memory that was never written or holds only zeros can be faster than memory with data.
        Tokens that steps emit after an assumed context are meaningless.
        """
        if not 0 <= length <= self.capacity:
            raise ValueError(f"slot {slot} has room for {self.capacity} tokens, not {length}")
        self.length(slot)  # raises for a free slot
        if length > self._noise[slot]:
            self.cache.scatter_noise(slot, self._noise[slot], length)
            self._noise[slot] = length
        self.lengths[slot] = length

    def commit(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Keep the KV of the accepted rows of an eager step, whose root is in the cell ``start``."""
        if path[-1] != len(path) - 1:  # a path that is not already the first rows
            self.cache.commit(slot, start, path)
        self.lengths[slot] = start + len(path)

    def keep(self, batch: FillBatch) -> None:
        """Set how many cells hold finished text after a pass over masked positions."""
        for slot, each in batch.passes.items():
            if each.keep is not None:
                self.lengths[slot] = each.keep

    @contextmanager
    def borrowed(self) -> Iterator[int]:
        """Occupy a free slot and release it at the end of the context."""
        slot = self.alloc()
        try:
            yield slot
        finally:
            self.free(slot)

    @contextmanager
    def scratch(self, length: int) -> Iterator[int]:
        """Borrow a free slot whose first ``length`` cells, and a tree's after them, are set to zero at the end."""
        with self.borrowed() as slot:
            try:
                yield slot
            finally:
                self.cache.clear(slot, length + self.cache.capacity - self.capacity)
                self._noise[slot] = 0

    @contextmanager
    def assumed(self, length: int) -> Iterator[int]:
        """Borrow a free slot with ``length`` cells of noise."""
        with self.scratch(length) as slot:
            self.assume(slot, length)
            yield slot
