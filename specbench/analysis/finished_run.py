"""A finished run in Python: its folder, summary and tables."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.analysis.noise import disturbance_line
from specbench.analysis.read import read_run
from specbench.results import MethodSummary, RunSummary, Speedup

if TYPE_CHECKING:
    import pandas as pd

_HEAD = (
    "method", "tokens", "tokens per forward", "tok/s", "speedup over AR", "end to end", "right answers", "lossless",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """The result of ``specbench.run``; it can also be made from any run folder."""

    folder: Path

    @cached_property
    def summary(self) -> RunSummary:
        """The figures of the run's methods, AR first; see :class:`RunSummary`."""
        return read_run(self.folder, traces=False).summary

    def frame(self, *, text: bool = False) -> pd.DataFrame:
        """A row per request, as from :func:`specbench.load`."""
        from specbench.analysis.frame import load

        return load(self.folder, text=text)

    def methods(self) -> pd.DataFrame:
        """A row per method, with the figures of the summary as columns."""
        from specbench.analysis.frame import load_methods

        return load_methods(self.folder)

    def _repr_html_(self) -> str:
        """Table for notebooks, a row per method."""
        lines = [str(self.folder), disturbance_line(self.summary)]
        return table([_HEAD, *map(_cells, self.summary.rows)], caption="; ".join(part for part in lines if part))


def table(rows: Sequence[Sequence[str]], caption: str) -> str:
    """HTML of a table whose first row is the head; all texts are escaped, because they may come from a model."""
    lines = ["<table>", f"<caption>{html.escape(caption)}</caption>"]
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        lines.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def _cells(row: MethodSummary) -> list[str]:
    right, lossless = row.accuracy, row.lossless
    return [
        f"{row.method} (simulated)" if row.simulated else row.method,
        str(row.tokens),
        _number(row.tokens_per_forward, 2),
        _number(row.decode_tok_s, 1),
        "1" if row.baseline else _speedup(row.speedup),
        "1" if row.baseline else _speedup(row.e2e_speedup),
        "not scored" if right is None else f"{right.passed}/{right.scored}",
        "not checked" if lossless is None else lossless.verdict,
    ]


def _speedup(speedup: Speedup | None) -> str:
    """A speedup with its interval, or with the reason why there is none."""
    if speedup is None:
        return "-"
    if speedup.interval is None:
        return f"{speedup.value:.2f} ({speedup.verdict})"
    low, high = speedup.interval
    return f"{speedup.value:.2f} [{low:.2f}, {high:.2f}]"


def _number(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
