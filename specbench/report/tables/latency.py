"""Tables of the times that a user waits: medians over AR, and percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.report.document import NOTHING, Cell, Column, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import name
from specbench.report.tables.columns import E2E, METHOD, NAME, Filled, cells_of, figure, speedup_column

if TYPE_CHECKING:
    from specbench.results import Estimate, MethodSummary

#: Field of a summary's row -> its name in tables, and the factor and the digits of its unit.
TIMES = {
    "ttft_s": ("TTFT ms", 1e3, 1),
    "tpot_s": ("TPOT ms", 1e3, 2),
    "itl_s": ("ITL ms", 1e3, 2),
    "latency_s": ("latency s", 1, 2),
}
_LEVELS = ("p50", "p90", "p95", "p99")


_INTERVALS = "95% intervals by a bootstrap over prompts, in summary.json and on the report's page"


def percentile_table(
    run_id: str, rows: Sequence[Any], named: Callable[[Any], str] = name, intervals: str = _INTERVALS
) -> Table:
    """Percentiles of each row's TTFT, time per output token, inter-token latency and latency."""
    columns = [METHOD, Column("time", "time", words=True), *(Column(level, level) for level in _LEVELS)]
    body = []
    for key, (title, times, digits) in TIMES.items():
        for row in rows:
            if found := getattr(row, key):
                figures = [_estimate(getattr(found, level), times, digits) for level in _LEVELS]
                body.append(
                    Row(
                        [Cell(row.method, line=named(row)), Cell(title), *figures],
                        run_id,
                        row.method,
                        strong=row.baseline,
                        key=f"{row.method} / {title}",
                    )
                )
    formula = (
        "TTFT and latency: prompt to first and to last token. TPOT: a request's seconds per token after the first. "
        "ITL: time between two arrivals; all tokens of a step arrive at once. Percentiles over requests, ITL's over "
        f"arrivals; {intervals}. p90 needs 10 values, p95 20, p99 100."
    )
    return Table(
        "percentiles",
        "How long users wait: percentiles",
        columns,
        body,
        Source([run_id], formula),
        folded=True,
        short="wait",
    )


def _estimate(found: Estimate | None, times: float, digits: int) -> Cell:
    if found is None:
        return NOTHING
    text = f"{times * found.value:.{digits}f}"
    if found.interval is None:
        return Cell(text, times * found.value)
    ends = f"[{times * found.interval[0]:.{digits}f}, {times * found.interval[1]:.{digits}f}]"
    return Cell(text, times * found.value, under=ends, line=text)


def end_to_end(run: Any, rows: Iterable[MethodSummary]) -> Table:
    """Time to first token, latency of the whole answer, and memory."""
    known = [row.memory for row in run.summary.rows if row.memory]
    held = "" if not known else (
        f"MB: memory for decoding: {known[0].weight_bytes / 1e6:.0f} for weights, {known[0].cache_bytes / 1e6:.0f} for "
        "the KV cache of all sequences, and the draft model or head."
    )  # fmt: skip
    cache = "KV cache: allocated for all sequences together."
    drafts = "drafts: weights and KV cache of the draft model or head."
    kept = Filled(
        "prefix_share", "kept", get=lambda row: cell.share(row.prefix_share),
        note="kept: share of the prompt tokens whose KV was kept from the turn before.",
    )  # fmt: skip
    peak = "peak: the most that torch's allocator held on the GPU."
    columns = [
        NAME, figure("ttft_ms", "TTFT ms", 1, 1e3, of="ttft_median_s"), speedup_column("ttft_speedup", "× TTFT"),
        figure("latency_s", "latency s", 2, of="latency_median_s"), replace(E2E, title="× latency"),
        *([kept] if any(row.prefix_share for row in run.summary.rows) else []),
        _bytes("memory_mb", "MB", "total", only="terminal", note=held, optional=True),
        _bytes("weights_mb", "weights MB", "weight_bytes", only="page"),
        _bytes("kv_cache_mb", "KV cache MB", "cache_bytes", only="page", note=cache),
        _bytes("drafts_mb", "drafts MB", "draft_bytes", only="page", note=drafts),
        figure("peak_mb", "peak MB", 0, 1e-6, of="peak_memory_bytes", only="page", note=peak),
    ]  # fmt: skip
    body = [Row(cells_of(columns, row), run.id, row.method, strong=row.baseline) for row in rows]
    formula = (
        "TTFT: prompt to first token; latency: prompt to last token; medians over requests. ×: AR's seconds divided by "
        "the method's, pooled over requests: to the first token for × TTFT, per token for × latency."
    )
    return Table("end to end", "End to end", columns, body, Source([run.id], formula), short="end to end")


def _bytes(key: str, title: str, part: str, **more: Any) -> Filled:
    """A column for one part of a method's memory, in megabytes."""

    def get(row: MethodSummary) -> Cell:
        return cell.figure(1e-6 * getattr(row.memory, part) if row.memory else None, 0)

    return Filled(key, title, get=get, **more)
