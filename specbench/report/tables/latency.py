"""Tables of the times that a user waits: medians over AR, percentiles, and both at each rate of arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.analysis import LATE_SHARE, load_findings, minimum_clusters
from specbench.report.document import NOTHING, Cell, Column, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import name
from specbench.report.tables.columns import E2E, METHOD, NAME, Filled, cells_of, figure, on, speedup_column
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.analysis import LoadFinding
    from specbench.results import AtRate, Estimate, Load, MethodSummary, RunSummary

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


def load_table(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """What users wait for at each rate of arrivals, and how many requests are good."""
    load: Load = run.config.load
    point = Filled("rate", "req/s", get=lambda at: Cell(f"{at.point} †" if load_state(at) else at.point, at.rate))
    tail = [_level("latency_s", "p95", "p95")]
    columns = [
        _level("ttft_s", "TTFT ms", "p50"), *on("page", _level("ttft_s", "p95", "p95")),
        _level("tpot_s", "TPOT ms", "p50"), *on("page", _level("tpot_s", "p95", "p95")),
        _level("latency_s", "latency s", "p50"),
        *(tail if any(at.latency_s and at.latency_s.p95 for row in rows for at in row.rates) else []),
        *on("page", _level("latency_s", "p99", "p99"), figure("ahead", "ahead", 1), figure("arrived", "arrived/s", 2)),
    ]  # fmt: skip
    if load.slo:
        columns += [
            Filled("good", "good", get=lambda at: cell.share(at.good.value if at.good else None)),
            Filled("goodput", "good/s", get=lambda at: cell.interval(at.goodput, 2), only="page"),
        ]
    over = Column("latency_speedup", "× latency")
    own = (
        [Column("own_latency_speedup", "× own ar", only="page")]
        if any(at.over_own for r in rows for at in r.rates)
        else []
    )
    state = Column("state", "", words=True, only="page")
    body = []
    for place in range(len(load.points)):
        for row in rows:
            for at in row.rates:
                if (at.rate, at.end) == (load.points[place].rate, load.points[place].end):
                    gained = cell.ONE if row.baseline else cell.one_line(at.speedup)
                    cells = [point.get(at), Cell(row.method, line=name(row)), *cells_of(columns, at), gained]
                    cells += [cell.one_line(at.over_own) for _ in own]
                    cells.append(Cell(", ".join(load_state(at))))
                    key = f"{row.method} / {at.point}"
                    body.append(Row(cells, run.id, row.method, strong=row.baseline, key=key))
    times = "TTFT and latency: arrival to first and to last token, waiting included. TPOT: seconds per later token."
    limits = ", ".join(f"{name} {1e3 * most:g} ms" for name, most in load.slo.items())
    formula = (
        f"{load_words(load)}. {times} p50, p95, p99: percentiles over requests; p95 needs 20, p99 100. ahead: mean "
        "number of requests in the system when one arrives. × latency: AR's latency over the method's at that rate, "
        "summed over the same requests, with a 95% interval over blocks of requests."
        + (f" good: requests with {limits} or less; good/s: those per second." if limits else "")
        + " †, queue grows: more arrives than is served, so times depend on the length of the run."
    )
    shown = [point, METHOD, *columns, over, *own, state]
    return Table("load", "Under load", shown, body, Source([run.id], formula), short="req/s")


def _level(field: str, title: str, level: str) -> Filled:
    _, times, digits = TIMES[field]

    def get(at: Any) -> Cell:
        found = getattr(at, field)
        return replace(_estimate(getattr(found, level), times, min(digits, 2)), under="") if found else NOTHING

    return Filled(f"{field.removesuffix('_s')}_{level}", title, get=get)


def load_words(load: Load) -> str:
    """How requests arrive, in words."""
    rates = ", ".join(map(str, load.points))
    how = {"poisson": "Poisson", "constant": "evenly spaced", "trace": "trace"}[load.arrivals]
    return f"{how} arrivals at {rates} requests/s"


def load_state(at: AtRate) -> list[str]:
    """What limits the figures at a rate."""
    found = ["queue grows"] if at.growing else []
    if at.late is not None and at.late > LATE_SHARE:
        found.append(f"client late: {at.late:.0%}")
    return found


def load_limits(summary: RunSummary) -> list[str]:
    """Sentences about the rates at which something limits the figures."""
    every = [(f"{row.method} at {at.point}/s", at) for row in summary.rows for at in row.rates]
    grown = ", ".join(label for label, at in every if at.growing)
    late = ", ".join(f"{label} ({at.late:.0%})" for label, at in every if at.late is not None and at.late > LATE_SHARE)
    found = [f"†: more requests arrived than were served, so times grow with the run: {grown}."] if grown else []
    return [*found, f"†: arrivals were not kept, the client sent requests late: {late}."] if late else found


def load_sentences(summary: RunSummary) -> list[str]:
    """Up to which rate each method's latency is below AR's, and that of an engine's drafting below its own plain row's.

    The sentences have no full stop.
    """
    by_reference: dict[str, list[LoadFinding]] = {}
    for found in load_findings(summary):
        by_reference.setdefault(found.over, []).append(found)
    return [_load_sentence(over, some, summary.unsure) for over, some in by_reference.items()]


def objective_lines(load: Load, summary: RunSummary) -> list[str]:
    """For each rate, the method with most requests within the objectives, and AR; no line without objectives."""
    parts = []
    for point in map(str, load.points):
        known = [(at.good.value, row) for row in summary.rows for at in row.rates if at.point == point and at.good]
        if not known:
            continue
        best, row = max(known, key=lambda each: each[0])
        own = next((f", {BASELINE} {share:.0%}" for share, each in known if each.baseline and not row.baseline), "")
        parts.append(f"{point}/s {row.method} {best:.0%}{own}" if best else f"{point}/s none")
    limits = ", ".join(f"{name} {1e3 * most:g} ms" for name, most in load.slo.items())
    return [f"Good:  most requests within {limits}: {'; '.join(parts)}"] if parts else []


def _load_sentence(over: str, found: Sequence[LoadFinding], unsure: bool) -> str:
    parts: dict[str, list[str]] = {}
    least = minimum_clusters()
    for each in found:
        where = _where(each)
        doubt = "" if each.sure or unsure or each.blocks < least else " (not shown at each)"
        parts.setdefault(where, []).append(f"{each.method}{doubt}")
    blocks = min(each.blocks for each in found)
    few = f"not shown, {blocks} block{'s' * (blocks != 1)} of requests and {least} are needed; measured: "
    first = "unsure, the machine was disturbed; measured: " if unsure else few if blocks < least else ""
    ranked = sorted(parts, key=lambda where: (where == "at no rate", where != "at every rate"))
    shown = "; ".join(f"{where}: {', '.join(parts[where])}" for where in ranked)
    return f"{first}× latency over {over} above 1 {shown}"


def _where(found: LoadFinding) -> str:
    if len(found.pays) == len(found.rates):
        return "at every rate" if found.whole else f"at {', '.join(found.rates)}/s, the rates that it reached"
    if not found.pays:
        return "at no rate"
    if found.pays == found.rates[: len(found.pays)]:
        return f"up to {found.pays[-1]}/s"
    return f"at {', '.join(found.pays)}/s"


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
