"""Table of what a reproduction takes: memory, hours and downloads of each of its sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.report.document import NOTHING, Block, Cell, Column, Row, Table, Words
from specbench.report.tables import cell


def forecast_table(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The table, with sums and what the figures mean."""
    columns = [
        Column("model", "model", words=True), Column("task", "task", words=True), Column("configurations", "configs"),
        Column("prompts", "prompts"), Column("memory_gb", "GB"), Column("hours", "hours ≤"),
        Column("fetch", "to download", words=True),
    ]  # fmt: skip
    body = []
    for each in found:
        memory = each["memory_bytes"]
        body.append(
            Row([
                Cell(each["model"]), Cell(each["task"]), cell.count(each["configurations"]),
                NOTHING if each["prompts"] is None else cell.count(each["prompts"]),
                cell.figure(None if memory is None else memory / 1e9, 1), cell.figure(each["hours"], 2),
                Cell(", ".join(each["fetch"]) or "nothing"),
            ])
        )  # fmt: skip
    hours = [each["hours"] for each in found if each["hours"] is not None]
    lines = [f"Hours in all: at most {sum(hours):.2f}."] if hours and len(hours) == len(found) else []
    lines.append(
        "GB: weights, KV cache and the largest step; of weights that are not here, 2 bytes for each of the parameters "
        "in the model's name. Hours: every answer to its token budget, at one token per forward."
    )
    if len(hours) < len(found):
        lines.append("Hours need step times: specbench profile measures them; --gpu NAME takes a datasheet's bound.")
    return [Table("forecast", "", columns, body), Words(lines, "notes")]
