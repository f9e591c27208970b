"""Trainings in the terminal: what they will take, and what each of them gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.tables.sweep import SHOWN, interval
from specbench.results import BASELINE
from specbench.sweeps.trained import hours_of

if TYPE_CHECKING:
    from specbench.sweeps.trained import ReadTrainings
    from specbench.sweeps.trainings import Due


def costs_table(due: Sequence[Due], max_hours: float | None = None) -> RenderableType:
    """What trainings will take, before the first of them begins."""
    made = _table("training", ("tokens", "FLOPs", "hours"))
    for each in due:
        will = each.predicted
        figures = ["", ""] if will is None else [_big(will.tokens), _big(will.flops)]
        hours = hours_of(each.hours) + (" done" if will is None else "")
        made.add_row(Text(each.label, overflow="fold"), *figures, hours)
    total = sum(each.hours for each in due)
    bound = "" if max_hours is None else f", of which --max-hours allows {max_hours:g}"
    return Group(
        made, Text(f"{hours_of(total)} hours in all{bound}; by the time that a step was measured to take.", "dim")
    )


def trainings_table(read: ReadTrainings) -> RenderableType:
    """What every training and cell gained, the fastest first, and what the figures rest on."""
    if read.cells.empty:
        return Group(Text("No training was swept yet.", "dim"), *_missing(read))
    cells = read.cells[(read.cells["set"] == "tuning") & (read.cells["method"] != BASELINE)]
    cells = cells.sort_values("speedup", ascending=False, na_position="last", kind="stable")
    made = _table("training", ("cell", "tokens", "hours", "TPF", "speedup", "right"))
    for row in cells.head(SHOWN).to_dict("records"):
        right = row["accuracy"]
        made.add_row(
            Text(str(row["training"]), overflow="fold"),
            Text(" ".join(str(row["label"]).split(" ")[1:]), overflow="fold"),
            _big(row["tokens_seen"]),
            "–" if pd.isna(row["hours"]) else hours_of(row["hours"]),
            "–" if pd.isna(row["tokens_per_forward"]) else f"{row['tokens_per_forward']:.2f}",
            interval(row, "speedup"),
            "–" if pd.isna(right) else f"{right:.0%}",
        )
    lines = [
        f"{read.method}: speedups are over plain decoding of the same weights; tokens and hours are the training's."
    ]
    if len(cells) > SHOWN:
        lines.append(f"{len(cells) - SHOWN} slower rows are in the CSV.")
    return Group(made, Text(), *(Text(line, style="dim") for line in lines), *_missing(read))


def _missing(read: ReadTrainings) -> list[Text]:
    """What the table has no rows of, and why."""
    lines = [f"Left out for want of hours: {each.label}." for each in read.entries if each.left_out]
    lines += [f"Left no weights: {each.label}; {each.ended}." for each in read.entries if each.ended]
    due = [each for each in read.entries if not each.left_out and not each.ended and each.sweep is None]
    lines += [
        f"Not {'swept' if each.model else 'trained'} yet: {each.label}; repeat the sweep's command." for each in due
    ]
    return [Text(line, style="dim") for line in lines]


def _table(first: str, columns: Sequence[str]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.padding = (0, 1, 0, 0)
    made.add_column(first, min_width=8, overflow="fold")
    for column in columns:
        text = column == "cell"
        made.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    return made


def _big(value: Any) -> str:
    """A count in three digits: 62.9k, 1.23M, 4.5e+15."""
    if value is None or pd.isna(value):
        return "–"
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if unit <= value < 1e9:
            return f"{value / unit:.3g}{word}"
    return f"{value:.3g}"
