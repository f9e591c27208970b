"""Step spread: how much AR's step varied within a run, which on a quiet machine it hardly does. No torch.

A step of AR is one row through the same weights every time, so its seconds are a reading of the machine that every run
brings with it, old ones too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.results.schema import RequestRecord
from specbench.results.stats.interval import Floats

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
    """How much a step varied.

    Attributes:
        spread: width of the middle half of the requests' steps, over their median. Up to a quarter of all requests may
            have been paused, for as long as you like, without moving it.
        drift: the median step of the slowest third of requests in a row over that of the fastest third, less 1: what a
            neighbour who comes or goes does, or a machine that gets hot.
        requests: that it is of.
    """

    spread: float
    drift: float
    requests: int


def step_spread(records: Sequence[RequestRecord], concurrency: int = 1, *, passes: bool = False) -> StepSpread | None:
    """Of AR's requests, those without a forward left out.

    A step grows with its context, and honestly: a line is taken off, which goes through seconds over cached tokens by
    the median of the slopes of all pairs (Theil and Sen), so that up to a quarter of the requests may lie anywhere. It
    is bent to what a step can do: it does not fall, and does not grow faster than in proportion. Neighbours in context
    were the other way, but of a dozen prompts of a dozen lengths there are none. What drifts exactly with the context,
    as on prompts sorted by length, is taken for the context's doing.

    With slots to fill, a request's share of the engine's time counts, and requests that were decoded while slots stood
    empty at the end of a stretch are left out: fewer sequences are another step.

    Args:
        records: AR's, in any order.
        concurrency: sequences that were stepped together.
        passes: ``repeat`` counts the passes of a sweep. These may be days apart, each has an AR of its own that its
            cells are held against, and so each is held against its own median.

    Returns:
        None of fewer than :data:`LEAST_REQUESTS` requests, or of less than :data:`LEAST_S` of decoding.
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
