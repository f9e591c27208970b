"""Other engines in a run: whether our AR is a fair baseline, speculation over each engine's own AR, and failed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from specbench.analysis import OverEngine, over_engines, step_time, where_time_goes
from specbench.report.document import Block, Cell, Column, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.cell import number, percent
from specbench.report.tables.columns import METHOD, SPEEDUP, TOK_S
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.results import EngineFacts, MethodSummary, RunSummary

_FAIR = (
    "Plain decoding of other engines in the same run: same weights, precision, prompt ids and stop rule, interleaved, "
    "timed from outside. Ratio: our AR's decode speed divided by theirs, with a 95% paired-bootstrap interval over "
    "prompts; above 1 our AR is faster. Reading: time to read a step's weights and KV cache at the bandwidth that a "
    "probe measured during the run."
)
_OWN = "Speculation of another engine over its own plain decoding in the same run, with whose texts lossless compares."


def engine_blocks(run: Any) -> Iterator[Block]:
    """Failed rows (ours too) and tables of other engines; empty if the run has neither."""
    rows = [row for row in run.summary.rows if row.other]
    if failed := [row for row in run.summary.rows if row.failed]:
        yield Words([f"{row.method} failed after {row.requests} requests: {row.failed}." for row in failed], "warning")
    if not rows:
        return
    if against := [] if run.config.load else over_engines(run.config, run.summary):
        yield _fair(run, against)
        yield Words([fairness(run.summary, against)])
    if own := [_own(run, row) for row in rows if row.other and row.other.over_own_ar and not run.config.load]:
        columns = [
            METHOD, Column("of", "over", words=True), SPEEDUP,
            Column("lossless", "lossless", words=True),
        ]  # fmt: skip
        title = "Other engines' speculation over their own AR"
        yield Table("over-own-ar", title, columns, own, Source([run.id], _OWN), short="over its own ar")
    if lines := [f"{row.method}: {described(row.other.facts)}" for row in rows if row.other and row.other.facts]:
        yield Words(lines, "notes")


def _fair(run: Any, against: Sequence[OverEngine]) -> Table:
    ours = next(row for row in run.summary.rows if row.method == BASELINE)
    columns = [
        Column("method", "engine", words=True), Column("ar_over_it", "our AR over it"),
        Column("ttft_ratio", "TTFT, theirs over ours", short="TTFT ratio"), TOK_S,
        Column("step_ms", "step, ms"), Column("reading_ms", "reading, ms"),
        Column("bandwidth_share", "share of bandwidth", short="bandwidth"),
    ]  # fmt: skip
    body = [Row([Cell(BASELINE), cell.ONE, cell.ONE, *_step(ours)], run.id, BASELINE, strong=True)]
    for each in against:
        under = "no interval" if each.low is None else f"[{number(each.low, 2)}, {number(each.high, 2)}]"
        ratio = Cell(number(each.ratio, 2), each.ratio, each.low, each.high, under=under, line=ratio_of(each))
        figures = [ratio, cell.figure(each.ttft_ratio, 2), *_step(each.row)]
        body.append(Row([Cell(each.row.method), *figures], run.id, each.row.method))
    return Table("fair-baseline", "Is our baseline fair?", columns, body, Source([run.id], _FAIR))


def _step(row: MethodSummary) -> list[Cell]:
    time = step_time(row)
    return [
        cell.figure(row.decode_tok_s, 1),
        cell.figure(None if time is None else 1e3 * time.total_s, 1),
        cell.figure(None if time is None or time.reading_s is None else 1e3 * time.reading_s, 1),
        cell.figure(row.bandwidth_share, 2),
    ]


def _own(run: Any, row: MethodSummary) -> Row:
    assert row.other
    assert row.other.over_own_ar
    own = row.other.over_own_ar
    return Row(
        [Cell(row.method), Cell(own.of), cell.one_line(own.speedup), cell.graded(own.lossless)], run.id, row.method
    )


def ratio_of(each: OverEngine) -> str:
    """Our AR's speed divided by the other engine's, with its interval."""
    if each.low is None or each.high is None:
        return f"{each.ratio:.2f} (too few)"
    return f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"


def fairness(summary: RunSummary, against: Sequence[OverEngine]) -> str:
    """Whether our AR is a fair baseline (within 5% of the fastest other engine), and if not, where the time goes."""
    fastest = against[0]
    if summary.unsure:
        return f"Unsure because this run was disturbed: {BASELINE} over {fastest.row.method} {ratio_of(fastest)}."
    if fastest.fair:
        return (
            f"Within 5% of the fastest other engine's plain decoding, or faster: {BASELINE} over "
            f"{fastest.row.method} {ratio_of(fastest)}."
        )
    because = where_time_goes(summary.rows, fastest)
    return f"{BASELINE} is slower than {fastest.row.method}, {ratio_of(fastest)}{f': {because}' if because else ''}."


def described(facts: EngineFacts) -> str:
    """An engine in one line: version, package, how it ran, weights and flags."""
    weights = facts.weights
    same = "the run's weights" if weights.verified else "weights unverified"
    digest = f", sha256 {weights.sha256[:12]}" if weights.sha256 else ""
    parts = [
        f"{facts.engine} {facts.version}" + (f" ({facts.package})" if facts.package else ""),
        facts.how,
        f"{facts.dtype}, {same}{digest}",
        *([] if facts.ids else ["exchanges text, which is tokenised again"]),
        *(
            {"forwards": [], "total": ["only total forwards counted"], "nothing": ["forwards not counted"]}[
                facts.counts
            ]
        ),
        *([" ".join(facts.command)] if facts.command else []),
    ]
    if facts.memory_bytes is not None:
        parts.append(f"{facts.memory_bytes / 1e6:.0f} MB")
    if facts.cores is not None:
        parts.append(f"{facts.cores:.1f} cores busy")
    if facts.idle_share is not None:
        idle = f"{percent(facts.idle_share)} of a core while other rows were timed"
        parts.append(f"stopped by signal, {idle}" if facts.stopped else idle)
    return " · ".join(parts)
