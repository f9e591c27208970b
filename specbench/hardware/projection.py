"""Project step times to another device, from its ceilings and from steps measured here.

Two assumptions give a lower and an upper limit: on the other device a step reaches the same share of its bound as here,
or its time beyond the bound (launches, synchronisation, Python) takes the same number of microseconds as here. The
projection is their geometric mean, and its band is the range between them; it is not a confidence interval.
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
        shape_there: shape of the same model in its precision on the other device; default is ``shape``.
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
        """Seconds of a step on the other device."""
        here = bound_s(step_cost(self._shape, rows, context, slots), self._here)
        there = bound_s(step_cost(self._shape_there, rows, context, slots), self._there)
        measured = self._times.seconds(rows, context, slots)
        found = sorted((measured * there / here, max(there, there + measured - here)))
        return Band(math.sqrt(found[0] * found[1]), found[0], found[1])


def project(
    projection: Projection, rows: Iterable[MethodSummary], context: int, slots: int
) -> dict[str, dict[str, Band]]:
    """Project a run's tokens per second and speedups to the other device, with the tokens per forward measured here.

    Step times do not include drafting on the host, so a method that drafts slowly looks better than it is.

    Args:
        rows: method summaries of a run; methods without forwards are skipped.

    Returns:
        label -> ``decode_tok_s`` and ``speedup`` over plain decoding. A speedup's band uses the same assumption for
        both methods, so it is narrower than the ratio of their bands.
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
