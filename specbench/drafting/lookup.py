"""Where the last tokens of a text occurred before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


class NgramIndex:
    """A growing text with the places of all its n-grams; a new token costs ``longest`` entries, a lookup one.

    Args:
        longest: n-grams of 1 to this many tokens are indexed.
    """

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._ends: list[dict[tuple[int, ...], list[int]]] = [defaultdict(list) for _ in range(longest)]

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends to the text."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for size, ends in enumerate(self._ends[:end], 1):
                ends[tuple(self.tokens[end - size :])].append(end)

    def before(self, size: int) -> Sequence[int]:
        """Where the last ``size`` tokens occurred before, oldest first.

        Returns:
            Ends of the occurrences: the text goes on at ``tokens[end]``. The last tokens themselves are left out.
        """
        if size > len(self.tokens):
            return []
        return self._ends[size - 1][tuple(self.tokens[-size:])][:-1]
