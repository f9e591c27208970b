"""Disturbance: whether its machine left a run alone, by figures with limits.

The verdicts of a run whose figures pass a limit begin with :data:`UNSURE`. The limits rest on the runs of ``results/``:
AR against itself with nothing beside it told the truth (0.99 [0.98, 1.01]) at a spread of 26 % of AR's step and a drift
of 24 %; with a training beside half of it they were 68 % and 95 %. Quiet runs of our own layers have 8 to 16 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from specbench.analysis.stats.interval import Floats
from specbench.results import Bandwidth, Disturbed, RequestRecord, RunSummary, Speedup, Threshold, Watch

#: What a verdict of a disturbed run begins with.
UNSURE = "unsure: "

#: Steps of a run alone on its cores use all of them: what others take, a step is longer by at least. AR against itself
#: told differences of 2.5%, so that twice as much is more than noise.
MOST_OTHERS = 0.05

#: Of a GPU's run the cores only start its kernels: it is held up where it finds none idle.
MOST_OTHERS_BESIDE_GPU = 0.5

#: As for other processes: a hypervisor is a neighbour too.
MOST_STOLEN = 0.05

#: The load beyond a run's own, over the cores: doctor's limit of always. It counts where nothing better is told.
MOST_LOAD = 0.5

#: With more cores at work each has a lower clock, and a step that waits for memory feels little of it. No run of
#: ``results/`` knew its clock: this one is a guess.
MOST_CLOCK_FALL = 0.15

#: A counter that moves says that a core was slower than it could be.
MOST_SLOWED = 0

#: Requests on a throttled GPU; as for other processes.
MOST_THROTTLED = 0.05

#: The middle half of what memory gave, over its median. AR's step is read from memory, so no more than its spread.
MOST_BANDWIDTH_SPREAD = 0.3

#: The middle half of AR's steps, over their median: above the 26% of a quiet run, less than half of a disturbed one's.
MOST_STEP_SPREAD = 0.3

#: The slowest third in a row over the fastest: above the 24% of a quiet run. A third that is 30% slower passes it.
MOST_STEP_DRIFT = 0.25

#: Seconds below which a run counts as not watched: some processes wake up for a second now and then.
LEAST_WATCHED_S = 5.0

#: Quartiles of fewer values are single ones.
LEAST_READINGS = 5


def find_disturbance(
    baseline: Sequence[RequestRecord],
    others: Sequence[RequestRecord] = (),
    *,
    concurrency: int = 1,
    passes: bool = False,
    on_gpu: bool = False,
    watch: Watch | None = None,
    bandwidth: Bandwidth | None = None,
) -> Disturbed | None:
    """What a run's records, its looks at the machine and its readings of memory say of its machine; None without any
    figure.

    Each figure comes with its limit, and ``reasons`` names those that pass it.
    """
    steps, records = step_spread(baseline, concurrency, passes=passes), [*baseline, *others]
    found: dict[str, float | None] = {
        **_watched(watch),
        "gpu_clock_fall": clock_fall([r.gpu.sm_clock_mhz for r in records if r.gpu and r.gpu.sm_clock_mhz]),
        "throttled_share": _throttled(records),
        "bandwidth_spread": spread([r.bytes_per_s for r in bandwidth.readings]) if bandwidth else None,
        "step_spread": steps.spread if steps else None,
        "step_drift": steps.drift if steps else None,
    }
    limits = {**LIMITS, "others_share": MOST_OTHERS_BESIDE_GPU} if on_gpu else LIMITS
    figures = {name: Threshold(value=value, limit=limits[name]) for name, value in found.items() if value is not None}
    if not figures:
        return None
    return Disturbed(
        reasons=[threshold_text(name, figure) for name, figure in figures.items() if figure.passed],
        watched_s=watch.seconds if watch and watch.looks else None,
        requests=steps.requests if steps else None,
        **figures,
    )


#: The limit of each figure of :class:`Disturbed`.
LIMITS = {
    "others_share": MOST_OTHERS,
    "stolen_share": MOST_STOLEN,
    "load_share": MOST_LOAD,
    "clock_fall": MOST_CLOCK_FALL,
    "slowed": MOST_SLOWED,
    "gpu_clock_fall": MOST_CLOCK_FALL,
    "throttled_share": MOST_THROTTLED,
    "bandwidth_spread": MOST_BANDWIDTH_SPREAD,
    "step_spread": MOST_STEP_SPREAD,
    "step_drift": MOST_STEP_DRIFT,
}

_SAID = {
    "others_share": "other processes took {} of the cores",
    "stolen_share": "a hypervisor took {} of the cores for other machines",
    "load_share": "the load beyond its own was {} of the cores",
    "clock_fall": "the cores' clock fell by {}",
    "slowed": "heat slowed the cores {} times",
    "gpu_clock_fall": "the GPU's clock fell by {}",
    "throttled_share": "the GPU was throttled under {} of the requests",
    "bandwidth_spread": "memory's bandwidth varied by {}",
    "step_spread": "AR's step varied by {}",
    "step_drift": "AR's step drifted by {}",
}


def threshold_text(name: str, figure: Threshold) -> str:
    """A figure of :class:`Disturbed` in words with its limit, as "other processes took 31% of the cores (limit 5%)"."""

    def shown(value: float) -> str:
        if name == "slowed":
            return f"{value:.0f}"
        kept = value != figure.limit and f"{value:.0%}" == f"{figure.limit:.0%}"  # 5.2% is above 5%
        return f"{value:.1%}" if kept else f"{value:.0%}"

    return f"{_SAID[name].format(shown(figure.value))} (limit {shown(figure.limit)})"


def disturbance_line(summary: RunSummary) -> str:
    """What stands above the figures of a disturbed run; empty of others."""
    if summary.disturbed is None or not summary.unsure:
        return ""
    return f"disturbed: {'; '.join(summary.disturbed.reasons)}; verdicts are unsure"


def watched_line(summary: RunSummary) -> str:
    """What was found of a run's machine: the reasons, or that there is none; empty where nobody looked."""
    found = summary.disturbed
    if found is None:
        return ""
    how = f"watched for {found.watched_s:.0f} s" if found.watched_s else "by AR's steps alone"
    return "; ".join(found.reasons) or f"no, {how}"


def spread(values: Sequence[float]) -> float | None:
    """Width of the middle half of some values, over their median; None of too few."""
    if len(values) < LEAST_READINGS:
        return None
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else None


def _watched(watch: Watch | None) -> dict[str, float | None]:
    if watch is None or watch.seconds < LEAST_WATCHED_S:
        return {}
    return {
        "others_share": watch.others_share(),
        "stolen_share": watch.stolen_share(),
        "load_share": watch.load_share(),
        "clock_fall": clock_fall(watch.clocks_mhz()),
        "slowed": watch.slowed(),
    }


def clock_fall(clocks_mhz: Sequence[float]) -> float | None:
    """By how much the lower quartile of some clocks lies below the upper one; None of too few."""
    if len(clocks_mhz) < LEAST_READINGS:
        return None
    low, high = np.percentile(np.asarray(clocks_mhz, dtype=np.float64), [25, 75])
    return float(1 - low / high)


def _throttled(records: Sequence[RequestRecord]) -> float | None:
    """Share of the requests on a GPU that was held down; None where no GPU tells."""
    known = [bool(r.gpu.throttled) for r in records if r.gpu and r.gpu.throttled is not None]
    return sum(known) / len(known) if known else None


def unsure(summary: RunSummary) -> RunSummary:
    """The summary with every verdict on a speed marked and no row the fastest, where its run was disturbed."""
    return _marked(summary.model_copy(update={"fastest": None})) if summary.unsure else summary


def unsure_speedup(found: Speedup | None) -> Speedup | None:
    """A speedup with its verdict marked; one without interval has none, and stays."""
    if found is None or found.interval is None:
        return found
    return found.model_copy(update={"verdict": f"{UNSURE}{found.verdict}"})


def _marked(part: Any) -> Any:
    """A part of a summary with the speedups inside of it marked, wherever they are: later ones too."""
    if isinstance(part, Speedup):
        return unsure_speedup(part)
    if isinstance(part, list):
        return [_marked(one) for one in part]
    if isinstance(part, dict):
        return {name: _marked(one) for name, one in part.items()}
    if isinstance(part, BaseModel):
        # What was not said stays unsaid: only what changes is set.
        fields = {name: (one, _marked(one)) for name, one in part if name in part.model_fields_set}
        return part.model_copy(update={name: new for name, (one, new) in fields.items() if new != one})
    return part


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
