"""``specbench sweep``: options of methods as a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.cli import options, output
from specbench.sweeps import SweepPlan


@options.takes(
    SweepPlan,
    shown=(
        "method", "grid", "grid_file", "task", "model", "limit", "held_out", "search", "until_ci", "max_new_tokens",
        "settings", "no_score", "profile", "executor", "workers", "out",
    ),
)  # fmt: skip
def sweep(plan: SweepPlan, as_json: bool = options.JSON, dry: bool = options.DRY_RUN) -> None:
    """Measure settings of methods beside each other: which is best, and which are as good.

    Every prompt is decoded by all cells, one right after the other, and by ar. Repeating the command goes on where it
    stopped; a wider grid decodes only its new cells.
    """
    if dry:
        from specbench.cli.run import show_dry_run
        from specbench.sweeps.dry_run import predict

        show_dry_run(predict(plan), as_json)
        return
    from specbench.sweeps import read_sweep, run_sweep

    read = read_sweep(run_sweep(plan))
    show_sweep(read, as_json, write=True)


def show_sweep(read: Any, as_json: bool, write: bool = False) -> None:
    """Prints a sweep.

    Args:
        read: a :class:`specbench.sweeps.table.ReadSweep`.
        as_json: one JSON document instead.
        write: also write the CSV and the pictures into its folder.
    """
    from specbench.report.terminal.sweep import sweep_table

    run = next(iter(read.runs.values())).run
    if write:
        from specbench.report.pictures import drawn_cells, pictures

        write_cells(read)
        pictures(drawn_cells(read.cells), read.path, _caption(run))
    if as_json:
        import json

        rows = json.loads(read.cells.to_json(orient="records"))
        output.emit_json({"folder": str(read.path), "sweep": dict(read.head), "cells": rows})
        return
    console = output.stdout()
    console.print()
    console.print(sweep_table(run, read.cells))
    if not read.finished:
        console.print("This sweep is not complete; repeat its command to go on.", style="dim")
    console.print(f"\nsweep: {read.path}", soft_wrap=True)


def write_cells(read: Any) -> None:
    """Writes ``cells.csv`` into a sweep's folder."""
    from specbench.common.files import write_text_atomic

    write_text_atomic(read.path / "cells.csv", read.cells.to_csv(index=False, float_format="%.6g"))


def _caption(run: Mapping[str, Any]) -> str:
    from specbench.results.run_file import device_name

    model, task = run["model"], run["task"]
    return f"{model['name']} {model['dtype']} · {task['name']} · {device_name(run)}"
