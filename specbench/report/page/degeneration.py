"""Texts of a run beside their speed: the table of its section, and the sentences on speedups that loops have made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.report.page import cells
from specbench.report.page.document import Cell, Column, Row, Source, Table
from specbench.report.page.headline import withheld
from specbench.report.terminal.degeneration import CLOSING_LOOP, asked, compared_with, made_by_loops, share
from specbench.results.degeneration import GRAMS

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results.summary_schema import TextFigures


def text_tables(run: Run) -> list[Table]:
    """The table, folded; none of a run whose acceptance was decided by lot."""
    columns = [
        Column("method", "method", words=True), Column("looping", "looping"), Column("loop_share", "of tokens"),
        *(Column(f"distinct_{n}", f"distinct-{n}") for n in GRAMS),
        Column("log_likelihood_per_token", "log-likelihood a token"), Column("agreement", "agrees"),
        Column("common_prefix_tokens", "common prefix"),
    ]  # fmt: skip
    body = [
        Row([Cell(row.method), *_cells(row.text, row.requests)], run.id, row.method) for row in run.rows if row.text
    ]
    config = run.config.model_dump()
    formula = (
        f"{CLOSING_LOOP} Of tokens: the share of all that loops take. distinct-n: different n-grams over all, mean of "
        f"answers. Log-likelihood: in nats, under {asked(config)} at temperature 1. agrees: positions with the token "
        f"of {compared_with(config)}, both running free; common prefix: tokens before the first other one, mean."
    )
    title = "What the texts are like"
    return (
        [Table("texts", title, columns, body, Source([run.id], formula), folded=True)]
        if body and not config["simulated"]
        else []
    )


def loop_notes(run: Run) -> list[str]:
    """The sentences of rows whose speed is told."""
    return [said for row in run.rows if not withheld(run, row) for said in made_by_loops(row)]


def _cells(text: TextFigures, requests: int) -> list[Cell]:
    def part(value: float | None) -> Cell:
        return cells.NOTHING if value is None else Cell(share(value), value)

    return [
        Cell(f"{text.looping}/{requests}", text.looping),
        part(text.loop_share),
        *(cells.figure(getattr(text, f"distinct_{n}"), 2) for n in GRAMS),
        cells.figure(text.log_likelihood_per_token, 2),
        part(text.agreement),
        cells.figure(text.common_prefix_tokens, 1),
    ]
