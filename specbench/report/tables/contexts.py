"""Tables over a growing context: prompts by length, and the chained problems of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specbench.report.document import NOTHING, Cell, Column, Medium, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import name
from specbench.report.tables.columns import METHOD, NAME, PROMPTS, SPEEDUP, TOK_S, TPF, Filled, cells_of, figure

if TYPE_CHECKING:
    from specbench.results import MethodSummary

_TITLE = "Throughput over a session"


def session_table(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """The whole session, its first and its last problem, a row per method, for a terminal."""
    ends = [
        replace(TOK_S, key="first_tok_s", title="first"), replace(TOK_S, key="last_tok_s", title="last"),
        Column("first_speedup", "× first"), Column("last_speedup", "× last"),
    ]  # fmt: skip
    whole = [figure("average_tok_s", "average", 1), figure("peak_tok_s", "peak", 1)]
    body = []
    for row in rows:
        if found := row.session:
            turns = found.turns[0], found.turns[-1]
            over = [cell.ONE if row.baseline else cell.ratio(at.speedup) for at in turns]
            cells = [*cells_of(whole, found), *(TOK_S.get(at) for at in turns), *over]
            body.append(Row([Cell(name(row)), *cells], run.id, row.method))
    columns = [NAME, *whole, *ends]
    return Table(
        "session", _TITLE, columns, body, Source([run.id], session_said(rows)), short="session", only="terminal"
    )


def context_table(run: Any, rows: Sequence[MethodSummary], only: Medium = "") -> Table:
    """A row for every method and bin of prompt lengths."""
    length = Filled(
        "prompt_tokens", "prompt tokens", get=lambda at: cell.count(round(at.prompt_tokens)), short="tokens"
    )
    traced = any(at.verify_s is not None for row in rows for at in row.contexts)
    times = [
        figure("draft_ms", "draft ms", 2, 1e3, of="draft_s"),
        figure("verify_ms", "verify ms", 2, 1e3, of="verify_s"),
    ]
    columns = [
        length, PROMPTS, TPF, TOK_S, figure("step_ms", "step ms", 2, 1e3, of="step_s"), *(times if traced else []),
        figure("ttft_ms", "TTFT ms", 0, 1e3, of="ttft_median_s", only="page"),
    ]  # fmt: skip
    body = []
    for row in rows:
        for at in row.contexts:
            over = cell.ONE if row.baseline else cell.one_line(at.speedup)
            cells = [Cell(row.method, line=name(row)), *cells_of(columns, at), over]
            body.append(Row(cells, run.id, row.method, strong=row.baseline, key=f"{row.method} / {at.end}"))
    formula = (
        "Prompts by length: each line has the prompts between a power of two of tokens and the next; prompt tokens is "
        "their median. step: seconds per target forward, drafting included."
        + (" draft and verify: its two parts, medians over steps (--trace)." if traced else "")
    )
    source = Source([run.id], formula)
    return Table(
        "contexts", "By length of the prompt", [METHOD, *columns, SPEEDUP], body, source, short="context", only=only
    )


def session_turns(run: Any, rows: Sequence[MethodSummary]) -> Table:
    """A row for every problem of a session and for the whole, for a page with its picture."""
    turn = Filled("problem", "problem", get=lambda at: cell.count(at.turn))
    columns = [turn, figure("prompt_tokens", "context", 0), TPF, TOK_S]
    body = []
    for row in rows:
        assert row.session
        over = [cell.ONE if row.baseline else cell.one_line(at.speedup) for at in row.session.turns]
        lines = [[*cells_of(columns, at), last] for at, last in zip(row.session.turns, over, strict=True)]
        for word, speed in (("average", row.session.average_tok_s), ("peak", row.session.peak_tok_s)):
            lines.append([Cell(word), NOTHING, NOTHING, cell.figure(speed, 1), NOTHING])
        for line in lines:
            key = f"{name(row)} / {line[0].text}"
            body.append(Row([Cell(name(row)), *line], run.id, row.method, key=key))
    source = Source([run.id], f"{session_said(rows)} The picture: over all sessions that are long enough.")
    return Table("session", _TITLE, [NAME, *columns, SPEEDUP], body, source)


def session_said(rows: Sequence[MethodSummary]) -> str:
    """Legend of the session tables."""
    found = next(row.session for row in rows if row.session)
    contexts = " to ".join(f"{found.turns[at].prompt_tokens:.0f}" for at in (0, -1))
    several = f"{found.sessions} session{'s' * (found.sessions > 1)}, each of {found.problems} chained problems"
    return (
        f"{several}, contexts of {contexts} tokens. tok/s: average: all tokens over all seconds, "
        f"prefills included; peak: a session's fastest {found.window_tokens} consecutive tokens, median over "
        "sessions; first and last problem: decoding only, × over AR on the same problem."
    )
