"""Sessions in the terminal: throughput over conversations of chained problems."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.tables.figures import name, number, plain, speedup
from specbench.results.summary_schema import MethodSummary


def session_table(rows: Sequence[MethodSummary]) -> RenderableType:
    """The table of a run's methods: the whole session, its first and its last problem."""
    shown = [(row, row.session) for row in rows if row.session]
    table = plain(["session", "average", "peak", "first", "last", "× first", "× last"], ["× first", "× last"])
    for row, found in shown:
        first, last = found.turns[0], found.turns[-1]
        table.add_row(
            name(row),
            number(found.average_tok_s, 1),
            number(found.peak_tok_s, 1),
            number(first.decode_tok_s, 1),
            number(last.decode_tok_s, 1),
            *("1" if row.baseline else speedup(at.speedup) for at in (first, last)),
        )
    return Group(table, Text(session_said(rows), style="dim"))


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
