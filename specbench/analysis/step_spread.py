"""Step spread: how much AR's step varied within a run, which on a quiet machine it hardly does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.stats.interval import Floats
from specbench.results import RequestRecord

#: Requests below which nothing is said: a third of them is the median of three, which one pause does not move.
LEAST_REQUESTS = 9

#: Seconds of decoding below which nothing is said: what a machine does beside a run is no steady thing over less.
LEAST_S = 5.0

#: Groups of requests of like context that the line over contexts goes through: of thousands all pairs were too many.
_GROUPS = 60

#: Thirds in a row that are looked at: of thousands of requests neighbouring ones differ by next to nothing.
_THIRDS = 200


@dataclass(frozen=True)
class StepSpread:
    """How much AR's step varied.

    Attributes:
        spread: width of the middle half of the requests' steps, over their median; pauses of up to a quarter of the
            requests do not move it.
        drift: the median step of the slowest third of consecutive requests over that of the fastest third, less 1.
    """

    spread: float
    drift: float
    requests: int


def step_spread(records: Sequence[RequestRecord], concurrency: int = 1, *, passes: bool = False) -> StepSpread | None:
    """Spread and drift of AR's steps; None of fewer than :data:`LEAST_REQUESTS` requests, or less than :data:`LEAST_S`
    of decoding.

    A step grows with its context: a line through seconds over cached tokens is taken off, by the median of the slopes
    of all pairs (Theil and Sen), bounded between none and in proportion. With slots to fill, a request's share of the
    time counts, and requests decoded while slots stood empty are left out. With ``passes``, ``repeat`` counts the
    passes of a sweep, which may be days apart: each is held against its own median.
    """
    counted = [r for r in records if r.target_forwards and r.decode_s > 0 and r.decode_share_s > 0]
    if concurrency > 1:
        counted = _in_full_slots(counted)
    counted.sort(key=lambda r: (r.segment, r.start_s))
    spent = sum(r.decoding_s(concurrency > 1) for r in counted)
    if len(counted) < LEAST_REQUESTS or spent < LEAST_S:
        return None
    # Of all sequences together: a share times so many slots is the step.
    steps = np.array([concurrency * r.decoding_s(concurrency > 1) / r.target_forwards for r in counted])
    contexts = np.array([r.prompt_tokens + r.output_tokens / 2 for r in counted])
    usual = np.median(steps) + _slope(contexts, steps) * (contexts - np.median(contexts))
    level = steps / np.maximum(usual, 1e-3 * np.median(steps))
    number = np.array([r.repeat if passes else 0 for r in counted])
    for one in np.unique(number):
        level[number == one] /= np.median(level[number == one])
    low, high = np.percentile(level, [25, 75])
    third = len(level) // 3
    starts = range(0, len(level) - third + 1, max(1, len(level) // _THIRDS))
    in_a_row = np.array([np.median(level[start : start + third]) for start in starts])
    return StepSpread(float(high - low), float(in_a_row.max() / in_a_row.min() - 1), len(level))


def _in_full_slots(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Those at whose end another one of their stretch was still to begin: until then no slot stood empty."""
    last: dict[int, float] = defaultdict(float)
    for r in records:
        last[r.segment] = max(last[r.segment], r.start_s)
    return [r for r in records if r.start_s + r.latency_s <= last[r.segment]]


def _slope(contexts: Floats, steps: Floats) -> float:
    """Seconds that a step takes more for a token more, by the pairs of groups of like context; 0 of one context."""
    order = np.argsort(contexts, kind="stable")
    groups = np.array_split(order, min(_GROUPS, len(order)))
    x, y = (np.array([np.median(values[group]) for group in groups]) for values in (contexts, steps))
    one, other = np.triu_indices(len(groups), 1)
    apart = x[other] > x[one]
    if not apart.any():
        return 0.0
    slope = float(np.median((y[other] - y[one])[apart] / (x[other] - x[one])[apart]))
    return min(max(slope, 0.0), float(np.median(steps) / np.median(contexts)))
