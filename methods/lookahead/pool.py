"""N-grams by first token: the few most recent ones that start with it (Fu et al. 2024, §3.2)."""

from __future__ import annotations

from collections import defaultdict

Ngram = tuple[int, ...]


class Pool:
    """N-grams by their first token; the least recent one is dropped first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_head: dict[int, dict[Ngram, None]] = defaultdict(dict)  # a dict keeps the order of insertion

    def insert(self, head: int, rest: Ngram) -> None:
        """Store the n-gram ``(head, *rest)`` as the most recent one."""
        kept = self._by_head[head]
        kept.pop(rest, None)
        if len(kept) == self._capacity:
            del kept[next(iter(kept))]
        kept[rest] = None

    def touch(self, head: int, rest: Ngram) -> None:
        """Make a stored n-gram the most recent one; does nothing if it was dropped."""
        kept = self._by_head[head]
        if rest in kept:
            del kept[rest]
            kept[rest] = None

    def of(self, head: int) -> list[Ngram]:
        """N-grams that start with ``head``, without it, oldest first."""
        return list(self._by_head.get(head, ()))


class RingPool:
    """N-grams by their first token in a ring, as in llama.cpp: a known n-gram is not stored again."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rings: dict[int, list[Ngram]] = defaultdict(list)
        self._next: dict[int, int] = defaultdict(int)  # the place that is overwritten next, once a ring is full

    def insert(self, head: int, rest: Ngram) -> None:
        """Store the n-gram ``(head, *rest)`` in the oldest place, unless it is already stored."""
        ring = self._rings[head]
        if rest in ring:
            return
        if len(ring) < self._capacity:
            ring.append(rest)
            return
        ring[self._next[head]] = rest
        self._next[head] = (self._next[head] + 1) % self._capacity

    def touch(self, head: int, rest: Ngram) -> None:
        """Do nothing: being used does not keep an n-gram in a ring."""

    def of(self, head: int) -> list[Ngram]:
        """N-grams that start with ``head``, without it, in the order of their places."""
        return list(self._rings.get(head, ()))
