"""Is our AR a fair baseline? Compare its speed with plain decoding of other engines in the same run.

Every speedup is over our AR, so a slow AR would make all speedups look better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.other_engines import same_precision
from specbench.results import BASELINE, PLAIN, MethodSummary, RunConfig, RunSummary, Speedup

#: Our AR is called fair if it has at least this share of the fastest other engine's speed.
NEAR = 0.95


@dataclass(frozen=True)
class OverEngine:
    """Our AR over another engine's: ratio of decode speeds with its 95% interval or None, and TTFT ratio."""

    row: MethodSummary
    ratio: float
    low: float | None
    high: float | None
    ttft_ratio: float | None

    @property
    def fair(self) -> bool:
        """Whether our measured speed is at most 5% lower."""
        return self.ratio >= NEAR


@dataclass(frozen=True)
class StepTime:
    """Where a step of plain decoding spends its time.

    ``reading_s`` is the time to read weights and cache at the measured bandwidth; ``host_s`` is the median time outside
    the target's forward, known only for our engine with ``--trace``.
    """

    total_s: float
    reading_s: float | None
    host_s: float | None


def over_engines(config: RunConfig, summary: RunSummary) -> list[OverEngine]:
    """Our AR over each other engine's plain decoding in a run, the fastest engine first."""
    plain = {
        spec.label
        for spec in config.methods
        if spec.engine and spec.name == f"{spec.engine}:{PLAIN}" and same_precision(spec, config.model.dtype)
    }
    found = [_over(row, row.speedup) for row in summary.rows if row.method in plain and row.speedup and not row.failed]
    return sorted(found, key=lambda each: each.ratio)


def _over(row: MethodSummary, theirs: Speedup) -> OverEngine:
    ends = theirs.interval
    return OverEngine(
        row,
        1 / theirs.value,
        low=1 / ends[1] if ends else None,
        high=1 / ends[0] if ends else None,
        ttft_ratio=1 / row.ttft_speedup.value if row.ttft_speedup else None,
    )


def step_time(row: MethodSummary) -> StepTime | None:
    """Where a row's step spends its time; None if its forwards were not counted."""
    if row.step_s is None:
        return None
    share = row.bandwidth_share
    return StepTime(row.step_s, None if share is None else row.step_s * share, (row.phases or {}).get("host_s"))


def where_time_goes(rows: Sequence[MethodSummary], over: OverEngine) -> str:
    """A sentence that compares our step time with another engine's; empty if forwards were not counted."""
    ours = step_time(next(row for row in rows if row.method == BASELINE))
    theirs = step_time(over.row)
    if ours is None or theirs is None:
        return ""
    text = f"a step of {BASELINE} takes {_ms(ours.total_s)} ms and one of {over.row.method} {_ms(theirs.total_s)}"
    if ours.reading_s is None or theirs.reading_s is None:
        return text
    text += f"; of ours, reading weights and cache takes {_ms(ours.reading_s)} at the bandwidth measured during the run"
    rest = ours.total_s - ours.reading_s
    if rest < 0:
        return f"{text}, so the actual bandwidth was higher, and the rest of the step is unknown"
    if ours.host_s is None:
        return f"{text}, everything else {_ms(rest)}; --trace measures how much of that is outside the forward"
    return f"{text}, everything else {_ms(rest)}, of which {_ms(ours.host_s)} is outside the forward (median)"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
