"""Decide whether other work on the machine disturbed a run, from figures with limits.

If a figure exceeds its limit, the run's verdicts begin with :data:`UNSURE`. The limits are based on the runs in
``results/``: AR against itself on a quiet machine gave the right result (0.99 [0.98, 1.01]) with a spread of AR's step
of 26% and a drift of 24%; with a training running during half of it they were 68% and 95%. Quiet runs with our own
layers have 8 to 16%.
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

#: Prefix of the verdicts of a disturbed run.
UNSURE = "unsure: "

#: A run uses all of its cores, so a step gets longer by at least the share that others take. AR against itself could
#: show differences of 2.5%, so twice as much is more than noise.
MOST_OTHERS = 0.05

#: In a run on a GPU the cores only launch kernels, so it is disturbed only if no core is idle.
MOST_OTHERS_BESIDE_GPU = 0.5

#: As for other processes: the hypervisor takes core time for other machines.
MOST_STOLEN = 0.05

#: Load beyond the run's own, divided by the cores; the limit that doctor uses. Used only if better figures are missing.
MOST_LOAD = 0.5

#: With more busy cores each has a lower clock, which hardly affects a step that waits for memory. No run in
#: ``results/`` recorded its clock, so this limit is a guess.
MOST_CLOCK_FALL = 0.15

#: Any increase of the counter means that heat slowed a core.
MOST_SLOWED = 0

#: Share of requests on a throttled GPU; as for other processes.
MOST_THROTTLED = 0.05

#: Interquartile range of memory bandwidth over its median. AR's step is limited by memory, so this is its limit, too.
MOST_BANDWIDTH_SPREAD = 0.3

#: Interquartile range of AR's steps over their median: above a quiet run's 26%, less than half of a disturbed run's.
MOST_STEP_SPREAD = 0.3

#: Slowest third of consecutive steps over the fastest: above a quiet run's 24%. A third that is 30% slower exceeds it.
MOST_STEP_DRIFT = 0.25

#: Shorter observations are ignored, because some processes wake up for a second now and then.
LEAST_WATCHED_S = 5.0

#: With fewer values, quartiles would be single readings.
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
    """Figures of disturbance from a run's records, its observations of the machine and its bandwidth readings.

    None without any figure. Each figure comes with its limit, and ``reasons`` names those that exceed it.
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
    "load_share": "the load of other work was {} of the cores",
    "clock_fall": "the cores' clock fell by {}",
    "slowed": "heat slowed the cores {} times",
    "gpu_clock_fall": "the GPU's clock fell by {}",
    "throttled_share": "the GPU was throttled under {} of the requests",
    "bandwidth_spread": "memory bandwidth varied by {}",
    "step_spread": "AR's step time varied by {}",
    "step_drift": "AR's step time drifted by {}",
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
    """The warning above the figures of a disturbed run; empty for other runs."""
    if summary.disturbed is None or not summary.unsure:
        return ""
    return f"disturbed: {'; '.join(summary.disturbed.reasons)}; verdicts are unsure"


def watched_line(summary: RunSummary) -> str:
    """Whether the run was disturbed: the reasons, or "no" and how this was observed; empty if it was not observed."""
    found = summary.disturbed
    if found is None:
        return ""
    how = f"watched for {found.watched_s:.0f} s" if found.watched_s else "judged by AR's steps only"
    return "; ".join(found.reasons) or f"no, {how}"


def spread(values: Sequence[float]) -> float | None:
    """Interquartile range of some values over their median; None for too few."""
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
    """How far the lower quartile of some clocks is below the upper one, as a share; None for too few."""
    if len(clocks_mhz) < LEAST_READINGS:
        return None
    low, high = np.percentile(np.asarray(clocks_mhz, dtype=np.float64), [25, 75])
    return float(1 - low / high)


def _throttled(records: Sequence[RequestRecord]) -> float | None:
    """Share of the requests on a throttled GPU; None if the GPU does not report it."""
    known = [bool(r.gpu.throttled) for r in records if r.gpu and r.gpu.throttled is not None]
    return sum(known) / len(known) if known else None


def unsure(summary: RunSummary) -> RunSummary:
    """The summary; if its run was disturbed, with every speed verdict marked as unsure and no fastest row."""
    return _marked(summary.model_copy(update={"fastest": None})) if summary.unsure else summary


def unsure_speedup(found: Speedup | None) -> Speedup | None:
    """A speedup with its verdict marked as unsure; unchanged without an interval."""
    if found is None or found.interval is None:
        return found
    return found.model_copy(update={"verdict": f"{UNSURE}{found.verdict}"})


def _marked(part: Any) -> Any:
    """A part of a summary with all speedups inside it marked, at any depth."""
    if isinstance(part, Speedup):
        return unsure_speedup(part)
    if isinstance(part, list):
        return [_marked(one) for one in part]
    if isinstance(part, dict):
        return {name: _marked(one) for name, one in part.items()}
    if isinstance(part, BaseModel):
        # Only changed fields are set, so that unset fields stay unset.
        fields = {name: (one, _marked(one)) for name, one in part if name in part.model_fields_set}
        return part.model_copy(update={name: new for name, (one, new) in fields.items() if new != one})
    return part


#: Fewest requests for a figure: a third of them is three, whose median a single pause does not change.
LEAST_REQUESTS = 9

#: Fewest seconds of decoding for a figure: over less time, other work on the machine is not steady.
LEAST_S = 5.0

#: Groups of requests with similar context for the line over contexts; all pairs of thousands would be too many.
_GROUPS = 60

#: Most windows (a third of the requests each) to evaluate; neighbouring windows hardly differ.
_THIRDS = 200


@dataclass(frozen=True)
class StepSpread:
    """How much AR's step varied.

    Attributes:
        spread: interquartile range of the requests' step times over their median; pauses in up to a quarter of the
            requests do not change it.
        drift: the median step of the slowest third of consecutive requests over that of the fastest third, less 1.
    """

    spread: float
    drift: float
    requests: int


def step_spread(records: Sequence[RequestRecord], concurrency: int = 1, *, passes: bool = False) -> StepSpread | None:
    """Spread and drift of AR's step times; None for fewer than :data:`LEAST_REQUESTS` requests or less than
    :data:`LEAST_S` of decoding.

    Step time grows with context. This is removed with a line through seconds over cached tokens, whose slope is the
    median over all pairs (Theil and Sen), between 0 and proportional. At concurrency above 1 a request's share of the
    time counts, and requests decoded while slots were empty are left out. With ``passes``, ``repeat`` counts the passes
    of a sweep, which may be days apart, so each is compared with its own median.
    """
    counted = [r for r in records if r.target_forwards and r.decode_s > 0 and r.decode_share_s > 0]
    if concurrency > 1:
        counted = _in_full_slots(counted)
    counted.sort(key=lambda r: (r.segment, r.start_s))
    spent = sum(r.decoding_s(concurrency > 1) for r in counted)
    if len(counted) < LEAST_REQUESTS or spent < LEAST_S:
        return None
    # Step time of all sequences together: a request's share times the number of slots.
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
    """The requests that ended before the last one of their segment started, so that no slot was empty."""
    last: dict[int, float] = defaultdict(float)
    for r in records:
        last[r.segment] = max(last[r.segment], r.start_s)
    return [r for r in records if r.start_s + r.latency_s <= last[r.segment]]


def _slope(contexts: Floats, steps: Floats) -> float:
    """Additional seconds per step and cached token, from pairs of groups of similar context; 0 for a single context."""
    order = np.argsort(contexts, kind="stable")
    groups = np.array_split(order, min(_GROUPS, len(order)))
    x, y = (np.array([np.median(values[group]) for group in groups]) for values in (contexts, steps))
    one, other = np.triu_indices(len(groups), 1)
    apart = x[other] > x[one]
    if not apart.any():
        return 0.0
    slope = float(np.median((y[other] - y[one])[apart] / (x[other] - x[one])[apart]))
    return min(max(slope, 0.0), float(np.median(steps) / np.median(contexts)))
