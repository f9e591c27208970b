"""Figures of a run as words of a terminal: one way to write each, in tables and sentences alike."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from specbench.results.summary_schema import Accuracy, Lossless, MethodSummary, Speedup


def name(row: MethodSummary) -> str:
    """A row's method, marked where its acceptance was simulated or it failed, and where its precision is another."""
    if row.simulated:
        return f"{row.method} (simulated)"
    return f"{row.method} ({', '.join(marks)})" if (marks := _marks(row)) else row.method


def _marks(row: MethodSummary) -> list[str]:
    facts = row.other.facts if row.other else None
    asked = str(row.options.get("dtype", "auto")) if row.other else "auto"
    other = [asked] if facts and asked != "auto" else []
    return [*other, *(["failed"] if row.failed else [])]


def plain(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table of words in its first column and in ``left``, and of figures in the others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def speedup(ratio: Speedup | None) -> str:
    """Value and interval."""
    if ratio is None:
        return "–"
    if ratio.interval is None:
        return f"{ratio.value:.2f} (too few)"
    low, high = ratio.interval
    return f"{ratio.value:.2f} [{low:.2f}, {high:.2f}]"


def accuracy(score: Accuracy | None) -> str:
    """Share of right answers with its count."""
    return "not scored" if score is None else f"{score.passed}/{score.scored}"


def lossless(verdict: Lossless | None) -> str:
    """The graded verdict; counts where it is not exact throughout."""
    if verdict is None:
        return "not checked"
    if verdict.verdict == "exact":
        return "exact"
    differing = verdict.numeric_tie + verdict.lossy
    return f"{verdict.verdict} {differing}/{differing + verdict.exact}"


def percent(share: float) -> str:
    """A share with two digits where one would say too little."""
    return f"{share:.1%}" if share < 0.0295 else f"{share:.0%}"
