"""Repetition: a piece of evidence that was measured again, row by row beside the run that pages quote.

Two intervals of one figure that overlap do not contradict each other. Of another machine they may well be apart: what
rows cost there is another matter. Tokens per forward are not of a machine, so long as its arithmetic is the same.
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
    """A row of a summary, then and now.

    Attributes:
        part: of a sweep, "c4" for four sequences; "" of a run.
        row: its label.
        then, now: as ``summary.json`` has them.
    """

    part: str
    row: str
    then: dict[str, Any]
    now: dict[str, Any]

    @property
    def overlap(self) -> bool | None:
        """Whether both intervals of the speedup have a value in common; None where one of them is missing."""
        (low, high), (lowest, highest) = (_ends(side) for side in (self.then, self.now))
        if low is None or high is None or lowest is None or highest is None:
            return None
        return low <= highest and lowest <= high


def parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Summaries of a sweep by its parts; of a run its own, by ""; of a profile none."""
    files = [
        *folder.glob("summary.json"),
        *sorted(folder.glob("c*/summary.json"), key=lambda file: int(file.parent.name[1:])),
    ]
    return {"" if file.parent == folder else file.parent.name: json.loads(file.read_text()) for file in files}


def pairs(then: Path, now: Path) -> list[Pair]:
    """Rows over AR that two folders have in common: of runs, or of sweeps part by part."""
    sides = [parts(folder) for folder in (then, now)]
    found = []
    for part in (part for part in sides[0] if part in sides[1]):
        rows = [{row["method"]: row for row in side[part]["rows"]} for side in sides]
        found += [Pair(part, name, rows[0][name], rows[1][name]) for name in rows[0] if name in rows[1]]
    return [pair for pair in found if pair.row != "ar"]


def table(found: Sequence[Pair]) -> Table:
    """As it is printed, in 80 columns too."""
    shown = Table("row", "TPF", "over AR, then", "now", "", box=None, pad_edge=False)
    for pair in found:
        said = {True: "overlap", False: "apart", None: "no interval"}[pair.overlap]
        forwards = " → ".join(f"{side['tokens_per_forward']:.2f}" for side in (pair.then, pair.now))
        speedups = [_speedup(side["speedup"]) for side in (pair.then, pair.now)]
        shown.add_row(" ".join(filter(None, (pair.part, pair.row))), forwards, *speedups, said)
    return shown


def count(found: Sequence[Pair]) -> str:
    """In a sentence."""
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
