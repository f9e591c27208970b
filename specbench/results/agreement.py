"""Agreement: how far answers are those of another row that ran free, position by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class Agreement:
    """Agreement over pairs of answers: share of equal positions (over those that either answer has), mean common
    prefix.
    """

    share: float
    prefix_tokens: float


def agreement(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Agreement | None:
    """Compare pairs of token ids, two rows' answers to the same request; None without any position."""
    prefixes, same, positions = list[int](), 0, 0
    for mine, other in pairs:
        equal = [a == b for a, b in zip(mine, other, strict=False)]
        same += sum(equal)
        positions += max(len(mine), len(other))
        prefixes.append(sum(takewhile(bool, equal)))
    return Agreement(same / positions, sum(prefixes) / len(prefixes)) if positions else None
