"""Show in the terminal the tree that one forward verified, a line per row.

The row that continues a path is directly below its parent without indentation, so that a chain of any length is a
straight line; branches are indented. Model text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specbench.analysis import Round, Row
from specbench.report.answers.generation import EMPTY, escaped, shown
from specbench.report.answers.states_grid import fit_width
from specbench.results import BONUS

_ORIGIN, _FIGURES = 14, 13  # columns of the terminal

ROWS = 48  # shown per tree; the others are only counted

#: Sign and meaning of each kind of row.
SIGNS: Mapping[str, tuple[str, str]] = {
    "root": ("»", "last token emitted before this forward"), "accepted": ("✓", "accepted"),
    "missed": ("▸", "top pick not accepted: the drafter's best-scored child there"), "rejected": ("✗", "rejected"),
    "draft-only": ("◇", "draft-only: computed only to generate drafts"),
    BONUS: ("+", "the target's own next token"),
}  # fmt: skip
_STYLES = {
    "root": Style(bold=True), "accepted": Style(color="green"), "missed": Style(color="yellow"),
    "rejected": Style(dim=True), "draft-only": Style(color="blue", dim=True), BONUS: Style(bold=True),
}  # fmt: skip


class RoundTree:
    """One round, printed as a tree with a legend and the number of rows not shown."""

    def __init__(self, found: Round) -> None:
        self._found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found, drawn = self._found, self._found.best_rows(ROWS)
        yield Text(escaped(title(found)), style="bold")
        yield Text()
        table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("depth", justify="right", no_wrap=True)
        table.add_column("token", no_wrap=True, overflow="ellipsis", min_width=12)
        scores = ("log p", "p") if any(row.score is not None for row in found.rows) else ()
        for name in scores:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("origin", no_wrap=True, overflow="ellipsis")
        most = max(2, options.max_width // 3)  # columns of indentation
        room = max(12, options.max_width - _ORIGIN - _FIGURES * bool(scores) - 8)
        for row, turns in laid_out(found, drawn):
            kind = BONUS if row is None else kind_of(row)
            text = (found.bonus if row is None else row.text) or ""
            words = " " * min(2 * turns, most) + f"{SIGNS[kind][0]} {shown(text)}"
            token = Text(fit_width(words, room), _STYLES[kind])
            if row is None:
                table.add_row(str(found.accepted + 1), token, *("" for _ in scores), BONUS)
            else:
                origin = Text(fit_width(escaped(row.origin), _ORIGIN))
                table.add_row(str(row.depth), token, *(scored(row) if scores else ()), origin)
        yield table
        yield Text()
        yield from _explained(found, drawn)


def title(found: Round) -> str:
    """Title of a round, not escaped."""
    return (
        f"{found.method} on {found.prompt_id}, forward {found.number} of {found.forwards}: {len(found.rows)} rows, "
        f"{found.accepted} accepted, {found.rejected} rejected, {found.emitted} emitted"
    )


def kind_of(row: Row) -> str:
    """A key of :data:`SIGNS`."""
    if row.row == 0:
        return "root"
    return "accepted" if row.accepted else "missed" if row.missed else "draft-only" if row.draft_only else "rejected"


def scored(row: Row) -> tuple[str, str]:
    """A row's score as log-probability and as probability; empty strings without a score."""
    if row.score is None:
        return "", ""
    return f"{row.score:.2f}", f"{probability(row.score):.0%}"


def probability(score: float) -> float:
    """Convert a natural log-probability to a probability."""
    return min(1.0, math.exp(score))


def laid_out(found: Round, drawn: set[int]) -> Iterator[tuple[Row | None, int]]:
    """The drawn rows from top to bottom, each with its number of branchings; None is the bonus token."""
    line: list[tuple[Row | None, int]] = [(found.rows[0], 0)]
    while line:
        row, turns = line.pop()
        yield row, turns
        if row is None:
            continue
        under = [child for child in found.children.get(row.row, ()) if child.row in drawn]
        if row.accepted and not any(child.accepted for child in under):
            on: list[tuple[Row | None, int]] = [(None, turns)] if found.bonus is not None else []
        else:
            on, under = [(child, turns) for child in under[:1]], under[1:]
        line += [*on, *((child, turns + 1) for child in reversed(under))]


def _explained(found: Round, drawn: set[int]) -> Iterator[Text]:
    kinds = {kind_of(row) for row in found.rows if row.row in drawn} | ({BONUS} if found.bonus is not None else set())
    signs = [f"{sign} {meaning}" for kind, (sign, meaning) in SIGNS.items() if kind in kinds]
    signs += [f"{EMPTY} a token without text of its own"] if not all(row.text for row in found.rows) else []
    yield Text("; ".join(signs) + ".", style="dim")
    if any(row.score is not None for row in found.rows):
        note = "log p: natural log-probability of a token after its parent, under the drafter; p: the same as a share."
        yield Text(note, style="dim")
    if left := len(found.rows) - len(drawn):
        only = sum(row.draft_only for row in found.rows if row.row not in drawn)
        note = f"{left} more rows are not shown"
        yield Text(note + (f", {only} of them draft-only." if only else "."), style="dim")
