"""What a step would take on another device: from its ceilings, and from steps measured here.

Two assumptions bracket it: every step reaches the share of its bound that it reaches here, or what a step takes beyond
its bound here (launches, synchronisation, Python) takes as many microseconds there. The projection is their geometric
mean, its band reaches from one to the other; it is no confidence interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from specbench.hardware.roofline import Ceilings, ModelShape, StepPoint, StepTimes, bound_s, step_cost
from specbench.results import BASELINE, MethodSummary


@dataclass(frozen=True)
class Band:
    """A projected figure with its band."""

    value: float
    low: float
    high: float


class Projection:
    """Step times on another device.

    Args:
        shape_there: of the same model in the precision that it would have there; default is the same.
    """

    def __init__(
        self,
        shape: ModelShape,
        here: Ceilings,
        points: Iterable[StepPoint],
        there: Ceilings,
        shape_there: ModelShape | None = None,
    ) -> None:
        self._shape, self._here, self._there = shape, here, there
        self._shape_there = shape_there or shape
        self._times = StepTimes(shape, here, points)

    def seconds(self, rows: int, context: int, slots: int = 1) -> Band:
        """Seconds of a step there."""
        here = bound_s(step_cost(self._shape, rows, context, slots), self._here)
        there = bound_s(step_cost(self._shape_there, rows, context, slots), self._there)
        measured = self._times.seconds(rows, context, slots)
        found = sorted((measured * there / here, max(there, there + measured - here)))
        return Band(math.sqrt(found[0] * found[1]), found[0], found[1])


def project(
    projection: Projection, rows: Iterable[MethodSummary], context: int, slots: int
) -> dict[str, dict[str, Band]]:
    """Tokens per second and speedup of a run's methods on the other device, at the tokens per forward measured here.

    Drafting on the host is in no step time: a method that drafts slowly comes out too well.

    Args:
        rows: of a summary; those without forwards are left out.

    Returns:
        Label -> ``decode_tok_s`` and ``speedup`` over plain decoding, which is projected with the same story: the band
        of a speedup is that of a ratio, and narrower than the ratio of bands.
    """
    plain = projection.seconds(1, context, slots)
    found = {}
    for row in rows:
        if not row.tokens_per_forward or not row.rows_per_step:
            continue
        step = projection.seconds(max(1, round(row.rows_per_step)), context, slots)
        tokens = row.tokens_per_forward * slots
        speed = Band(tokens / step.value, tokens / step.high, tokens / step.low)
        over = sorted((row.tokens_per_forward * plain.low / step.low, row.tokens_per_forward * plain.high / step.high))
        ratio = Band(row.tokens_per_forward * plain.value / step.value, over[0], over[1])
        found[row.method] = {"decode_tok_s": speed} | ({} if row.method == BASELINE else {"speedup": ratio})
    return found
