"""Figures under open-loop load: at each rate, how long users wait, how many are served in time, and the gain over AR.

A block of requests is the unit of every interval, because its requests wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.speedup import BOOTSTRAP_SEED, Key, Measure, Pairs
from specbench.analysis.stats.interval import minimum_clusters, resamples
from specbench.analysis.stats.percentiles import percentiles
from specbench.analysis.stats.proportions import proportion_interval
from specbench.results import BASELINE, AtRate, Estimate, Load, RequestRecord, Speedup

if TYPE_CHECKING:
    from specbench.results import MethodSummary, RunSummary

#: Seconds after a request's arrival from which the client counts as late, and the share of late requests that is borne.
LATE_S, LATE_SHARE = 0.01, 0.01

_LATENCY = Measure(lambda record, shared: record.latency_s, lambda record: 1.0)
_DRAWS, _LEVEL = 2_000, 0.95
#: Growth of the queue through a block, in requests and as a multiple of its length at the block's start.
_GROWS, _TIMES = 1.0, 0.5


def at_rates(
    load: Load | None,
    baseline: Mapping[Key, RequestRecord],
    mine: Mapping[Key, RequestRecord],
    own: Mapping[Key, RequestRecord] | None = None,
) -> list[AtRate]:
    """A method's figures at each rate; empty for a closed loop.

    Args:
        own: of another engine: the answers of its plain row, if there is one; None for a row of our engine, which takes
            arrivals from its own clock.
    """
    if load is None:
        return []
    by_point: dict[int, dict[Key, RequestRecord]] = defaultdict(dict)
    for key, record in mine.items():
        by_point[record.repeat % len(load.points)][key] = record
    return [_at(load, at, baseline, by_point[at], own) for at in range(len(load.points)) if by_point[at]]


def _at(
    load: Load,
    at: int,
    baseline: Mapping[Key, RequestRecord],
    mine: Mapping[Key, RequestRecord],
    own: Mapping[Key, RequestRecord] | None,
) -> AtRate:
    point, records = load.points[at], list(mine.values())
    blocks: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each.arrived_s):
        blocks[record.segment].append(record)
    arrived = _arrived(blocks.values())
    good = _good(load, blocks.values())
    late = [(record.waited_s or 0.0) > LATE_S for record in records]
    units = [f"{record.segment}" for record in records]
    return AtRate(
        rate=point.rate,
        end=point.end,
        arrived=arrived,
        requests=len(records),
        blocks=len(blocks),
        ttft_s=percentiles([(unit, [record.ttft_s]) for unit, record in zip(units, records, strict=True)]),
        tpot_s=percentiles(
            [(unit, [] if r.tpot_s is None else [r.tpot_s]) for unit, r in zip(units, records, strict=True)]
        ),
        latency_s=percentiles([(unit, [record.latency_s]) for unit, record in zip(units, records, strict=True)]),
        ahead=mean(record.ahead or 0 for record in records),
        waited_s=mean(record.waited_s or 0.0 for record in records),
        late=None if own is None else mean(late),
        growing=_grows(blocks.values()),
        good=good,
        goodput=None if good is None or arrived is None else _scaled(good, arrived),
        speedup=_over(baseline, mine),
        over_own=_over(own or {}, mine),
    )


def _over(reference: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord]) -> Speedup | None:
    """The latency of a reference row over this row's; None for the reference itself."""
    found = {key: reference[key] for key in mine if key in reference}
    same = all(record.method == mine[key].method for key, record in found.items())
    return None if same else Pairs.of(found, mine, True).speedup(_LATENCY)


_Blocks = Collection[Sequence[RequestRecord]]  # each in the order of arrival


def _arrived(blocks: _Blocks) -> float | None:
    """Requests per second that arrived, from the first to the last arrival of each block."""
    found = [block for block in blocks if len(block) > 1]
    spans = sum(block[-1].arrived_s - block[0].arrived_s for block in found)
    return sum(len(block) - 1 for block in found) / spans if spans > 0 else None


def is_good(load: Load, record: RequestRecord) -> bool:
    """Whether a request met every objective; an answer of one token has no time per output token to miss."""
    times = {"ttft": record.ttft_s, "tpot": record.tpot_s, "latency": record.latency_s}
    return all((times[name] or 0.0) <= most for name, most in load.slo.items())


def _good(load: Load, blocks: _Blocks) -> Estimate | None:
    if not load.slo:
        return None
    every = [[is_good(load, record) for record in block] for block in blocks]
    good = np.array([sum(block) for block in every], dtype=np.float64)
    of = np.array([len(block) for block in every], dtype=np.float64)
    value = float(good.sum() / of.sum())
    if len(every) < minimum_clusters(_LEVEL):
        return Estimate(value=value)
    if value in (0.0, 1.0):  # a bootstrap would claim certainty; as if each block were one request
        found = proportion_interval(round(value * len(every)), len(every))
        return Estimate(value=value, low=found.low if found else None, high=found.high if found else None)
    shares = np.concatenate(
        [good[picked].sum(1) / of[picked].sum(1) for _, picked in resamples(len(every), _DRAWS, BOOTSTRAP_SEED)]
    )
    low, high = np.quantile(shares, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high))


def _scaled(found: Estimate, by: float) -> Estimate:
    low, high = found.interval or (None, None)
    return Estimate(
        value=found.value * by, low=None if low is None else low * by, high=None if high is None else high * by
    )


def _grows(blocks: _Blocks) -> bool:
    """Whether more requests were in the system at the end of the blocks than at their start, on average."""
    starts, ends = [], []
    for block in blocks:
        part = len(block) // 3
        if part:
            starts.append(mean(record.ahead or 0 for record in block[:part]))
            ends.append(mean(record.ahead or 0 for record in block[-part:]))
    return bool(starts) and mean(ends) - mean(starts) > max(_GROWS, _TIMES * mean(starts))


@dataclass(frozen=True)
class LoadFinding:
    """At which rates a method has a shorter latency than a reference row.

    Attributes:
        over: the reference: AR, or the plain row of the method's engine.
        rates: the rates at which both were measured, lowest first.
        pays: those of them at which it has a shorter latency.
        sure: whether intervals show it at every rate.
        whole: whether these are all rates of the run.
        blocks: fewest blocks of requests at a rate.
    """

    method: str
    over: str
    rates: list[str]
    pays: list[str]
    sure: bool
    whole: bool
    blocks: int


def load_findings(summary: RunSummary) -> list[LoadFinding]:
    """Where each method pays; rows that failed, repeat another or are simulated are left out."""
    rows = [row for row in summary.rows if not (row.failed or row.simulated or row.again)]
    every = max((len(row.rates) for row in summary.rows), default=0)
    found = [_finding(row, BASELINE, {at.point: at.speedup for at in row.rates}, every) for row in rows]
    for row in rows:
        if row.other and row.other.over_own_ar:
            own = {at.point: at.over_own for at in row.rates}
            found.append(_finding(row, row.other.over_own_ar.of, own, every))
    return [each for each in found if each]


def _finding(row: MethodSummary, over: str, speedups: Mapping[str, Speedup | None], every: int) -> LoadFinding | None:
    rates = sorted(row.rates, key=lambda at: (at.rate, at.end or 0.0))
    known = [(at, found) for at in rates if (found := speedups[at.point])]
    if not known:
        return None
    pays = [at.point for at, found in known if found.value > 1]
    sure = all(found.verdict in ("faster", "slower") for _, found in known)
    points = [at.point for at, _ in known]
    return LoadFinding(row.method, over, points, pays, sure, len(known) == every, min(at.blocks for at, _ in known))
