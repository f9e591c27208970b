"""Sessions in the report: throughput over conversations of chained problems, as a picture with its table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specbench.report.page import cells
from specbench.report.page.document import Cell, Column, Figure, Row, Source, Table
from specbench.report.page.headline import withheld
from specbench.report.pictures import cards, style
from specbench.report.terminal.figures import name as named
from specbench.report.terminal.session import session_said

if TYPE_CHECKING:
    from specbench.report.gathering import Run


def session_figures(run: Run) -> Iterator[Figure]:
    """The curve of a run's methods over its sessions; none of a run without chained problems."""
    shown = [row for row in run.rows if row.session and not withheld(run, row) and not row.simulated]
    curves = {named(row): row.session.windows_tok_s for row in shown if row.session and row.session.windows_tok_s}
    if not curves:
        return
    source = Source([run.id], f"{session_said(shown)} The picture: over all sessions that reach so far.")
    columns = [
        Column("method", "method", words=True), Column("problem", "problem"), Column("prompt_tokens", "context"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s"), Column("speedup", "speedup"),
    ]  # fmt: skip
    body, window = [], 0
    for row in shown:
        assert row.session
        window = row.session.window_tokens
        for at in row.session.turns:
            figures = [
                cells.count(at.turn),
                cells.figure(at.prompt_tokens, 0),
                cells.figure(at.tokens_per_forward, 2),
                cells.figure(at.decode_tok_s, 1),
                Cell("1", 1.0) if row.baseline else cells.one_line(at.speedup),
            ]
            body.append(Row([Cell(named(row)), *figures], run.id, row.method, key=f"{named(row)} / {at.turn}"))
        ends = [("average", row.session.average_tok_s), ("peak", row.session.peak_tok_s)]
        for word, speed in ends:
            figures = [Cell(word), cells.NOTHING, cells.NOTHING, cells.figure(speed, 1), cells.NOTHING]
            body.append(Row([Cell(named(row)), *figures], run.id, row.method, key=f"{named(row)} / {word}"))
    title = "Throughput over a session"
    behind = Table("session", title, columns, body, source)
    says = "; ".join(
        f"{named(row)}: average {cells.figure(row.session.average_tok_s, 1).text}, peak "
        f"{cells.figure(row.session.peak_tok_s, 1).text} tok/s"
        for row in shown
        if row.session
    )
    name = f"{run.id}-session"
    yield Figure(name, title, style.svg(cards.session(curves, window), name, says), says, source, behind)
