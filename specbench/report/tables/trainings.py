"""Tables of a sweep over trainings: expected costs, and the speedup that each training gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specbench.report.document import Block, Cell, Column, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.columns import SPEEDUP, TPF
from specbench.report.tables.sweep import SHOWN, estimate
from specbench.results import BASELINE
from specbench.sweeps import hours_of

if TYPE_CHECKING:
    from specbench.sweeps import Due, ReadTrainings


def training_costs(due: Sequence[Due], max_hours: float | None = None) -> list[Block]:
    """Expected costs of the trainings, before the first one starts."""
    columns = [
        Column("training", "training", words=True), Column("tokens", "tokens"), Column("flops", "FLOPs"),
        Column("hours", "hours"),
    ]  # fmt: skip
    body = []
    for each in due:
        will = each.predicted
        figures = ["", ""] if will is None else [_big(will.tokens), _big(will.flops)]
        hours = hours_of(each.hours) + (" done" if will is None else "")
        body.append(Row([Cell(text) for text in (each.label, *figures, hours)]))
    total = hours_of(sum(each.hours for each in due))
    bound = "" if max_hours is None else f", of which --max-hours allows {max_hours:g}"
    text_ = f"{total} hours in all{bound}; estimated from a measured training step."
    return [Table("costs", "", columns, body, Source(formula=text_))]


def trainings_report(read: ReadTrainings) -> list[Block]:
    """Results of every training and configuration, the fastest first."""
    missing = _missing(read)
    if read.cells.empty:
        return [Words(["No training was swept yet.", *missing], "notes")]
    cells = read.cells[(read.cells["set"] == "tuning") & (read.cells["method"] != BASELINE)]
    cells = cells.sort_values("speedup", ascending=False, na_position="last", kind="stable")
    columns = [
        Column("training", "training", words=True), Column("cell", "configuration", words=True),
        Column("tokens", "tokens"), Column("hours", "hours"), TPF,
        SPEEDUP, Column("accuracy", "right"),
    ]  # fmt: skip
    body = [
        Row(
            [
                Cell(str(row["training"])), Cell(" ".join(str(row["label"]).split(" ")[1:])),
                Cell(_big(row["tokens_seen"])), Cell("–" if pd.isna(row["hours"]) else hours_of(row["hours"])),
                cell.known(row["tokens_per_forward"], 2), estimate(row, "speedup"),
                cell.share(None if pd.isna(row["accuracy"]) else row["accuracy"]),
            ]
        ) for row in cells.head(SHOWN).to_dict("records")
    ]  # fmt: skip
    lines = [f"{read.method}: speedups over plain decoding of the same weights; tokens and hours of the training."]
    if len(cells) > SHOWN:
        lines.append(f"{len(cells) - SHOWN} slower rows are in the CSV.")
    return [Table("trainings", "", columns, body), Words([*lines, *missing], "notes")]


def _missing(read: ReadTrainings) -> list[str]:
    """The trainings without rows in the table, and why."""
    due = [each for each in read.entries if not each.left_out and not each.ended and each.sweep is None]
    return [
        *(f"Left out because --max-hours is used up: {each.label}." for each in read.entries if each.left_out),
        *(f"No weights from {each.label}: {each.ended}." for each in read.entries if each.ended),
        *(f"Not {'swept' if each.model else 'trained'} yet: {each.label}; repeat the sweep's command." for each in due),
    ]


def _big(value: Any) -> str:
    """Format a count with three digits: 62.9k, 1.23M, 4.5e+15."""
    if value is None or pd.isna(value):
        return "–"
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if unit <= value < 1e9:
            return f"{value / unit:.3g}{word}"
    return f"{value:.3g}"
