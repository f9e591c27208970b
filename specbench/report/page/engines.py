"""Other engines in the report: whether our AR is a fair baseline, their speculation over their own, what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specbench.report.document import Block, Cell, Column, Row, Source, Table, Words
from specbench.report.page import cells
from specbench.report.tables.fair_baseline import described, fairness
from specbench.report.tables.figures import lossless, number
from specbench.results.baseline import over_engines, step_time
from specbench.results.schema import BASELINE

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results.summary_schema import MethodSummary

_FAIR = (
    "Other engines' plain decoding in the same run: the same weights at the same precision, the same prompt ids and "
    "stop rule, interleaved, timed from outside. Ratio: our AR's decode speed over theirs with its 95% "
    "paired-bootstrap interval over prompts; above 1 ours is faster. Reading: what a step's weights and cache take at "
    "the bandwidth that a probe read beside the run."
)
_OWN = "Their speculation over the same engine's plain decoding in the same run; lossless: against its own texts."


def engine_blocks(run: Run) -> Iterator[Block]:
    """What a run says of rows that failed, ours too, and of its other engines; nothing where it has neither."""
    failed = [row for row in run.rows if row.failed]
    if failed:
        yield Words([f"{row.method} failed after {row.requests} requests: {row.failed}." for row in failed], "warning")
    rows = [row for row in run.rows if row.other]
    if not rows:
        return
    if against := over_engines(run.config, run.summary):
        yield _fair(run)
        yield Words([fairness(run.summary, against)])
    if own := [_own(run, row) for row in rows if row.other and row.other.over_own_ar]:
        columns = [
            Column("method", "method", words=True), Column("of", "over", words=True), Column("speedup", "speedup"),
            Column("lossless", "lossless", words=True),
        ]  # fmt: skip
        yield Table("over-own-ar", "Other engines' speculation over their own AR", columns, own, Source([run.id], _OWN))
    if said := [f"{row.method}: {described(row.other.facts)}" for row in rows if row.other and row.other.facts]:
        yield Words(said, "notes")


def _fair(run: Run) -> Table:
    ours = next(row for row in run.rows if row.method == BASELINE)
    columns = [
        Column("method", "engine", words=True), Column("ar_over_it", "our AR over it"),
        Column("ttft_ratio", "TTFT, theirs over ours"), Column("decode_tok_s", "tok/s"), Column("step_ms", "step, ms"),
        Column("reading_ms", "reading, ms"), Column("bandwidth_share", "share of bandwidth"),
    ]  # fmt: skip
    body = [Row([Cell(BASELINE), Cell("1", 1.0), Cell("1", 1.0), *_step(ours)], run.id, BASELINE, strong=True)]
    for each in over_engines(run.config, run.summary):
        under = "no interval" if each.low is None else f"[{number(each.low, 2)}, {number(each.high, 2)}]"
        ratio = Cell(number(each.ratio, 2), each.ratio, each.low, each.high, under=under)
        figures = [ratio, cells.figure(each.ttft_ratio, 2), *_step(each.row)]
        body.append(Row([Cell(each.row.method), *figures], run.id, each.row.method))
    return Table("fair-baseline", "Is our baseline fair?", columns, body, Source([run.id], _FAIR))


def _step(row: MethodSummary) -> list[Cell]:
    time = step_time(row)
    return [
        cells.figure(row.decode_tok_s, 1),
        cells.figure(None if time is None else 1e3 * time.total_s, 1),
        cells.figure(None if time is None or time.reading_s is None else 1e3 * time.reading_s, 1),
        cells.figure(row.bandwidth_share, 2),
    ]


def _own(run: Run, row: MethodSummary) -> Row:
    assert row.other
    assert row.other.over_own_ar
    own = row.other.over_own_ar
    return Row(
        [Cell(row.method), Cell(own.of), cells.one_line(own.speedup), Cell(lossless(own.lossless))], run.id, row.method
    )
