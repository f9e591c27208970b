"""Agreement: how far answers are those of another row that ran free, position by position. No torch.

Not the share of tokens that a model would say next behind the other one's text: that forgives every departure at the
next token, and is above 90% where not half of the positions agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True)
class Agreement:
    """What is to be said of pairs of answers.

    Attributes:
        share: positions with the same token over those that either answer has.
        prefix_tokens: tokens before the first difference, mean over pairs.
    """

    share: float
    prefix_tokens: float


def agreement(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Agreement | None:
    """How far pairs of answers agree; None without any position.

    Args:
        pairs: token ids of an answer, and of the other row's to the same request.
    """
    prefixes, same, positions = list[int](), 0, 0
    for mine, other in pairs:
        equal = [a == b for a, b in zip(mine, other, strict=False)]
        same += sum(equal)
        positions += max(len(mine), len(other))
        prefixes.append(sum(takewhile(bool, equal)))
    return Agreement(same / positions, sum(prefixes) / len(prefixes)) if positions else None
