"""Tokens that a grammar allows after each row of a token tree (library: llguidance)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt


class _At(Enum):
    """Where a text is in the grammar."""

    OPEN = 0
    ENDED = 1  # complete, and an end token has been read
    OUTSIDE = 2  # it broke the grammar


class Grammar:
    """A grammar for one tokenizer.

    Args:
        source: in llguidance's form.
        tokens: an ``llguidance.LLTokenizer``.
        ends: tokens that end an answer; after a complete text they alone are allowed.
    """

    def __init__(self, source: str, tokens: Any, ends: Sequence[int]) -> None:
        self._source, self._tokens, self._ends = source, tokens, frozenset(ends)
        self._walks: dict[int, _Walk] = {}

    @property
    def empty(self) -> bool:
        """Whether no text of the tokens follows the grammar, as far as its first token shows."""
        from llguidance import LLMatcher  # imported here: an optional library

        matcher = LLMatcher(self._tokens, self._source, log_level=0)
        first = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        return not matcher.is_accepting() and set(np.flatnonzero(first).tolist()) <= self._ends

    def allowed(
        self, slot: int, output: Sequence[int], tokens: Sequence[int], parents: Sequence[int], before: int
    ) -> npt.NDArray[np.bool_]:
        """Find the tokens that may follow each row of a slot's tree: bool [rows, at least the tokenizer's tokens].

        All tokens may follow a row that the target cannot reach, because its own token or one before it is forbidden.

        Args:
            output: tokens of the answer before the root.
            before: depth from which rows belong to the answer: 1 if the root is the last token of the prompt.
        """
        from llguidance import LLMatcher  # imported here: an optional library

        if slot not in self._walks:
            self._walks[slot] = _Walk(LLMatcher(self._tokens, self._source, log_level=0), self._ends)
        walk = self._walks[slot]
        walk.read(output)
        return walk.allowed(tokens, parents, before)


class _Walk:
    """A matcher that has read the output of one sequence and visits its trees."""

    def __init__(self, matcher: Any, ends: frozenset[int]) -> None:
        self._matcher, self._ends = matcher, ends
        self._output: list[int] = []
        self._at = _At.OPEN

    def read(self, output: Sequence[int]) -> None:
        """Advance to the end of ``output``, from the beginning if it does not continue what was read before."""
        known = len(self._output)
        if list(output[:known]) != self._output:
            self._matcher.reset()
            self._output, self._at, known = [], _At.OPEN, 0
        for token in output[known:]:
            self._at = self._next(self._at, token)
            self._output.append(token)

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], before: int) -> npt.NDArray[np.bool_]:
        """:meth:`Grammar.allowed` after the output that was read: depth first, taking tokens back on the way."""
        found = np.ones((len(tokens), 8 * len(self._matcher.compute_bitmask())), dtype=np.bool_)
        children: list[list[int]] = [[] for _ in tokens]
        for row, parent in enumerate(parents[1:], 1):
            children[parent].append(row)
        path: list[tuple[_At, bool]] = []  # rows from the root: where each is, and whether the matcher has read it
        waiting = [(0, 0)]
        while waiting:
            row, depth = waiting.pop()
            self._take_back(path, depth)
            at, inside = path[-1][0] if path else self._at, depth >= before
            if inside:
                at = self._next(at, tokens[row])
            path.append((at, inside and at is _At.OPEN))
            if at is _At.OPEN:
                bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
                found[row] = np.unpackbits(bits, bitorder="little")
            elif at is _At.ENDED:
                found[row] = False
                found[row, sorted(self._ends)] = True
            waiting += [(child, depth + 1) for child in children[row]]
        self._take_back(path, 0)
        return found

    def _take_back(self, path: list[tuple[_At, bool]], depth: int) -> None:
        """Shorten ``path`` to the rows above ``depth``."""
        while len(path) > depth:
            if path.pop()[1]:
                self._matcher.rollback(1)

    def _next(self, at: _At, token: int) -> _At:
        """Read one more token."""
        if token in self._ends:
            complete = at is _At.ENDED or (at is _At.OPEN and self._matcher.is_accepting())
            return _At.ENDED if complete else _At.OUTSIDE
        if at is _At.OPEN and self._matcher.try_consume_tokens([token]) == 1:
            return _At.OPEN
        return _At.OUTSIDE
