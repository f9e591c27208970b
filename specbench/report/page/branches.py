"""Branch calibration of a run: a drafter's scores of its best branches compared with the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.report.page import cells
from specbench.report.page.document import Cell, Column, Row, Source, Table
from specbench.results.branches import BROKEN, KEPT

if TYPE_CHECKING:
    from specbench.report.gathering import Run

_FORMULA = (
    "Of up to eight trees a request: the path that takes the best-scored child each time. Gap: the sum of the "
    "log-probabilities that its drafter gave its tokens, less that under the target, in nats, at temperature 1."
)


def branch_tables(run: Run) -> list[Table]:
    """The table, folded; none where no method's drafts have scores."""
    columns = [
        Column("method", "method", words=True), Column("branches", "trees"), Column("tokens", "tokens"),
        Column("gap_median", "median gap"), Column("gap_mean", "mean gap"),
        Column("kept_share", f"under {KEPT:g} nats"), Column("broken_share", f"{BROKEN:g} nats or more"),
    ]  # fmt: skip
    body = []
    for row in run.rows:
        if found := row.branches:
            shares = [Cell(f"{share:.0%}", share) for share in (found.kept_share, found.broken_share)]
            figures = [cells.figure(value, 1) for value in (found.tokens, found.gap_median, found.gap_mean)]
            count = Cell(str(found.branches), found.branches)
            body.append(Row([Cell(row.method), count, *figures, *shares], run.id, row.method))
    title = "How well drafters' scores of their branches match the target"
    return [Table("branches", title, columns, body, Source([run.id], _FORMULA), folded=True)] if body else []
