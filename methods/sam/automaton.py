"""A suffix automaton: every substring of a text with the end of its first occurrence, grown token by token.

Blumer et al. 1985: at most two states per token. A state is a set of strings that end at the same places in the text. A
state's link leads to the state of the longest suffix of its strings that also occurs elsewhere. So the longest suffix
of the text that occurred before is the link of the whole text's state. The longest match of another text is updated at
constant average cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """A suffix of a text that occurs in an automaton's text; length 0 means no match."""

    state: int
    length: int


NO_MATCH = Match(0, 0)


class Automaton:
    """The substrings of one text."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        # By state; state 0 is the empty string.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]  # state of the longest suffix of its strings that has further occurrences
        self._length = [0]  # length of its longest string
        self._first = [0]  # end of its strings' first occurrence: the text continues at tokens[first]
        self._last = 0  # state of the whole text
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the text."""
        for token in tokens:
            self._append(token)

    def repeated(self) -> Match:
        """The longest suffix of the text that occurred before."""
        state = max(self._link[self._last], 0)
        return Match(state, self._length[state])

    def follow(self, match: Match, token: int) -> Match:
        """The longest match after another text's next token, given the longest match before it."""
        state, length = match
        while token not in self._next[state]:
            state = self._link[state]
            if state < 0:
                return NO_MATCH
            length = self._length[state]
        return Match(self._next[state][token], length + 1)

    def with_room(self, match: Match, tokens: int) -> Match:
        """The longest suffix of a match whose first occurrence is followed by at least ``tokens`` tokens."""
        state, length = match
        latest = len(self.tokens) - tokens
        while state and self._first[state] > latest:
            state = self._link[state]
            length = self._length[state]
        return Match(state, length)

    def following(self, match: Match, most: int) -> list[int]:
        """The tokens after the first occurrence of a match, at most ``most``."""
        end = self._first[match.state]
        return self.tokens[end : end + most]

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        size = len(self.tokens)
        new = self._state({}, size, size)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state < 0:
            self._link[new] = 0
        else:
            found = self._next[state][token]
            if self._length[found] == self._length[state] + 1:
                self._link[new] = found
            else:  # only the shorter strings of that state also end here: move them to a new state
                copy = self._state(dict(self._next[found]), self._length[state] + 1, self._first[found])
                self._link[copy] = self._link[found]
                while state >= 0 and self._next[state].get(token) == found:
                    self._next[state][token] = copy
                    state = self._link[state]
                self._link[found] = self._link[new] = copy
        self._last = new

    def _state(self, following: dict[int, int], length: int, first: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._first.append(first)
        return len(self._link) - 1
