"""Sessions: throughput over conversations of chained problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.report.document import NOTHING, Cell, Column, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import name

if TYPE_CHECKING:
    from specbench.results.summary_schema import MethodSummary

_TITLE = "Throughput over a session"


def session_table(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """The whole session, its first and its last problem, a row for each method; for a terminal."""
    columns = [
        Column("method", "method", words=True), Column("average_tok_s", "average"), Column("peak_tok_s", "peak"),
        Column("first_tok_s", "first"), Column("last_tok_s", "last"),
        Column("first_speedup", "× first"), Column("last_speedup", "× last"),
    ]  # fmt: skip
    body = []
    for row in rows:
        if found := row.session:
            ends = found.turns[0], found.turns[-1]
            speeds = [found.average_tok_s, found.peak_tok_s, *(at.decode_tok_s for at in ends)]
            over = [cell.ONE if row.baseline else cell.ratio(at.speedup) for at in ends]
            body.append(Row([Cell(name(row)), *(cell.figure(speed, 1) for speed in speeds), *over], run.id, row.method))
    return Table(
        "session", _TITLE, columns, body, Source([run.id], session_said(rows)), short="session", only="terminal"
    )


def session_turns(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """Every problem of a session, a row for each and for the whole; for a page, beside its picture."""
    columns = [
        Column("method", "method", words=True), Column("problem", "problem"), Column("prompt_tokens", "context"),
        Column("tokens_per_forward", "TPF"), Column("decode_tok_s", "tok/s"), Column("speedup", "speedup"),
    ]  # fmt: skip
    body = []
    for row in rows:
        assert row.session
        lines = [
            [
                cell.count(at.turn), cell.figure(at.prompt_tokens, 0), cell.figure(at.tokens_per_forward, 2),
                cell.figure(at.decode_tok_s, 1), cell.ONE if row.baseline else cell.one_line(at.speedup),
            ] for at in row.session.turns
        ]  # fmt: skip
        for word, speed in (("average", row.session.average_tok_s), ("peak", row.session.peak_tok_s)):
            lines.append([Cell(word), NOTHING, NOTHING, cell.figure(speed, 1), NOTHING])
        for line in lines:
            key = f"{name(row)} / {line[0].text}"
            body.append(Row([Cell(name(row)), *line], run.id, row.method, key=key))
    source = Source([run.id], f"{session_said(rows)} The picture: over all sessions that reach so far.")
    return Table("session", _TITLE, columns, body, source)


def session_said(rows: Sequence[MethodSummary]) -> str:
    """What its words mean."""
    found = next(row.session for row in rows if row.session)
    contexts = " to ".join(f"{found.turns[at].prompt_tokens:.0f}" for at in (0, -1))
    several = f"{found.sessions} session{'s' * (found.sessions > 1)}, each of {found.problems} chained problems"
    return (
        f"{several}, contexts of {contexts} tokens. tok/s: average of all tokens over all seconds, "
        f"prefills included; peak of the fastest window, of a session's windows of {found.window_tokens} tokens one "
        "after the other, median of sessions; first and last problem, decoding alone, × over AR on the same problem."
    )
