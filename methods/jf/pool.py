"""Rejection recycling: tokens that followed the last verified token in rejected drafts are tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from specbench.decoding import NgramIndex

_MATCH = 3  # longest match considered when places in the output are ranked
_PLACES = 16  # places checked per match length: a bound for very repetitive texts


class Pool:
    """The output and the last ``candidates`` rejected drafts; yields at most ``candidates`` candidates per step."""

    def __init__(self, candidates: int) -> None:
        self._limit = candidates
        self._rejected: deque[Sequence[int]] = deque(maxlen=candidates)
        self._output = NgramIndex(_MATCH)

    def see(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens."""
        self._output.extend(tokens)

    def reject(self, draft: Sequence[int]) -> None:
        """Add the refreshed draft of a step that did not accept all of it."""
        self._rejected.append(list(draft))

    def candidates(self, verified: int, draft: Sequence[int]) -> list[list[int]]:
        """Distinct continuations of the verified token, as long as ``draft`` and different from it.

        A candidate that is too short is completed with the draft's tokens at the same positions, which may be right
        whatever precedes them.
        """
        found: list[list[int]] = []
        for continuation in self._continuations(verified):
            candidate = list(continuation[: len(draft)])
            candidate += draft[len(candidate) :]
            if candidate != list(draft) and candidate not in found:
                found.append(candidate)
                if len(found) == self._limit:
                    break
        return found

    def _continuations(self, verified: int) -> Iterator[Sequence[int]]:
        tokens = self._output.tokens
        for size in range(_MATCH, 0, -1):
            for end in self._output.before(size)[-_PLACES:][::-1]:
                yield tokens[end:]
        for draft in reversed(self._rejected):
            for at, token in enumerate(draft[1:], 1):
                if token == verified:
                    yield draft[at + 1 :]
