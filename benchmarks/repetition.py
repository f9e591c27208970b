"""Compare a repeated measurement row by row with the run that pages quote.

Two overlapping intervals of one figure do not contradict each other. On another machine they may well differ, because
rows cost differently there. Tokens per forward do not depend on the machine as long as its arithmetic is the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Pair:
    """A row of a summary in the quoted run and in the repetition.

    Attributes:
        part: part of a sweep, such as "c4" for four sequences; "" for a run.
        row: label of the row.
        then, now: the row in both ``summary.json``.
    """

    part: str
    row: str
    then: dict[str, Any]
    now: dict[str, Any]

    @property
    def overlap(self) -> bool | None:
        """Whether the two intervals of the speedup overlap; None if one of them is missing."""
        (low, high), (lowest, highest) = (_ends(side) for side in (self.then, self.now))
        if low is None or high is None or lowest is None or highest is None:
            return None
        return low <= highest and lowest <= high


def parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summaries of a sweep by part, of a run under the key "", and none of a profile."""
    files = [
        *folder.glob("summary.json"),
        *sorted(folder.glob("c*/summary.json"), key=lambda file: int(file.parent.name[1:])),
    ]
    return {"" if file.parent == folder else file.parent.name: json.loads(file.read_text()) for file in files}


def pairs(then: Path, now: Path) -> list[Pair]:
    """Return the rows with a speedup that two folders have in common: runs, or sweeps part by part."""
    sides = [parts(folder) for folder in (then, now)]
    found = []
    for part in (part for part in sides[0] if part in sides[1]):
        rows = [{row["method"]: row for row in side[part]["rows"]} for side in sides]
        found += [Pair(part, name, rows[0][name], rows[1][name]) for name in rows[0] if name in rows[1]]
    return [pair for pair in found if pair.row != "ar"]


def table(found: Sequence[Pair]) -> Table:
    """Make the table to print; it fits in 80 columns."""
    shown = Table("row", "TPF", "over AR, then", "now", "", box=None, pad_edge=False)
    for pair in found:
        verdict = {True: "overlap", False: "apart", None: "no interval"}[pair.overlap]
        forwards = " → ".join(f"{side['tokens_per_forward']:.2f}" for side in (pair.then, pair.now))
        speedups = [_speedup(side["speedup"]) for side in (pair.then, pair.now)]
        shown.add_row(" ".join(filter(None, (pair.part, pair.row))), forwards, *speedups, verdict)
    return shown


def count(found: Sequence[Pair]) -> str:
    """Count the overlapping intervals, as text."""
    known = [pair.overlap for pair in found if pair.overlap is not None]
    return f"{sum(known)} of {len(known)} intervals overlap"


def _ends(row: dict[str, Any]) -> tuple[float | None, float | None]:
    speedup = row["speedup"] or {}
    return speedup.get("low"), speedup.get("high")


def _speedup(speedup: dict[str, Any] | None) -> str:
    if not speedup:
        return "–"
    value, low, high = (speedup.get(name) for name in ("value", "low", "high"))
    return f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None else "")
