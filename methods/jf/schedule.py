"""Choose the state of a block to train on: a noise level that grows over a window of blocks (Jacobi Forcing).

The post and the released packing script differ in where the levels end and in what counts as noise; both are options.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Order = Literal["cyclic", "random"]
Ends = Literal["open", "closed"]
Measure = Literal["divergence", "unconverged"]


@dataclass(frozen=True)
class Schedule:
    """Noise levels of the blocks of a text.

    Attributes:
        window: w, blocks over which the level grows, at least 1.
        order: ``cyclic`` gives block i level i mod w, so that noise grows progressively; ``random`` any of the w.
        ends: ``open`` has the levels 0, 1/w, …, (w - 1)/w (the post), ``closed`` w of them from 0 to 1 (the code).
        measure: which tokens of a state are noise, see :func:`noise_ratio`.
        rotate: at visit v, block i has the level of block i + v, so that w visits cover all levels. Not from a
            publication. Only with ``cyclic``.
    """

    window: int
    order: Order = "cyclic"
    ends: Ends = "open"
    measure: Measure = "divergence"
    rotate: bool = False

    @property
    def levels(self) -> list[float]:
        """The w levels, ascending from 0."""
        parts = self.window if self.ends == "open" else max(1, self.window - 1)
        return [level / parts for level in range(self.window)]

    def states(
        self, blocks: Sequence[Sequence[Sequence[int]]], lengths: Sequence[int], draw: random.Random, visit: int
    ) -> list[int]:
        """The state of each block to train on.

        ``blocks``: trajectories, each ending in its fixed point; ``lengths``: tokens of each block that belong to the
        answer (later ones do not count as noise); ``visit``: how often the text was used before.
        """
        levels = self.levels
        shift = visit if self.rotate else 0
        chosen = []
        for at, (states, length) in enumerate(zip(blocks, lengths, strict=True)):
            level = levels[(at + shift) % self.window] if self.order == "cyclic" else draw.choice(levels)
            chosen.append(
                nearest([noise_ratio(state[:length], states[-1][:length], self.measure) for state in states], level)
            )
        return chosen


def noise_ratio(state: Sequence[int], fixed: Sequence[int], measure: Measure) -> float:
    """Share of a state's n tokens that is noise.

    ``measure``: ``divergence`` is (n - f) / n with f the first token that differs, as released: right tokens after a
    wrong one count as noise, because they are conditioned on it. ``unconverged`` is the share of tokens that differ
    (the post).
    """
    differs = [a != b for a, b in zip(state, fixed, strict=True)]
    if measure == "unconverged":
        return sum(differs) / len(differs)
    return (len(differs) - differs.index(True)) / len(differs) if any(differs) else 0.0


def nearest(ratios: Sequence[float], level: float) -> int:
    """Index of the ratio nearest to a level; the first of equally near ones."""
    return min(range(len(ratios)), key=lambda at: abs(ratios[at] - level))
