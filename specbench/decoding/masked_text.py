"""A text with masked positions, and the rules by which decoders choose which predictions to keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class MaskedText:
    """A prompt and the answer after it, some of whose positions hold the mask token.

    Attributes:
        tokens: token ids of all positions, mask tokens included.
    """

    def __init__(self, prompt: Sequence[int], mask: int) -> None:
        self.tokens, self.mask = list(prompt), mask
        self._masked: set[int] = set()
        self._final = len(prompt)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add a known token at the end."""
        self.tokens.append(token)

    def extend_to(self, end: int) -> None:
        """Add masked positions up to ``end``."""
        self._masked |= set(range(len(self.tokens), end))
        self.tokens += [self.mask] * (end - len(self.tokens))

    def masked(self, begin: int, end: int) -> list[int]:
        """The masked positions from ``begin`` to before ``end``, ascending."""
        return [position for position in range(begin, end) if position in self._masked]

    def fill(self, position: int, token: int) -> None:
        """Replace a mask by a token."""
        self._masked.discard(position)
        self.tokens[position] = token

    def final(self) -> list[int]:
        """Return the tokens of the answer that have become final since the last call: those before the first mask."""
        end = min(self._masked, default=len(self.tokens))
        found, self._final = self.tokens[self._final : end], max(end, self._final)
        return found


def best_of(scores: Mapping[int, float], count: int) -> list[int]:
    """The ``count`` positions with the highest scores; of equal scores the earlier positions."""
    return sorted(scores, key=lambda position: (-scores[position], position))[:count]


def above(scores: Mapping[int, float], threshold: float, *, inclusive: bool = False) -> list[int]:
    """Positions whose score exceeds a threshold, or with ``inclusive`` reaches it; at least the best one."""
    chosen = [at for at, score in scores.items() if score > threshold or (inclusive and score == threshold)]
    return chosen or best_of(scores, 1)


def even_shares(count: int, steps: int) -> list[int]:
    """Divide ``count`` positions over passes as evenly as possible, earlier passes first."""
    return [count // steps + (step < count % steps) for step in range(steps)]


def block_ends(positions: Iterable[int], size: int) -> list[int]:
    """For each position the end of its block, where blocks of ``size`` tokens start at position 0."""
    return [(position // size + 1) * size for position in positions]
