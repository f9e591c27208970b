"""``specbench sweep``: options of methods as a grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.sweeps.plan import TrainedSweepPlan


@options.takes(
    TrainedSweepPlan,
    shown=(
        "method", "grid", "grid_file", "task", "model", "limit", "held_out", "search", "until_ci", "max_new_tokens",
        "settings", "out", "train", "train_grid", "max_hours",
    ),
)  # fmt: skip
def sweep(plan: TrainedSweepPlan, as_json: bool = options.JSON, dry: bool = options.DRY_RUN) -> None:
    """Measure settings of methods beside each other: which is best, and which are as good.

    Every prompt is decoded by all cells, one right after the other, and by ar.
    Repeating the command goes on where it stopped; a wider grid decodes only its
    new cells. With --train the grid is swept once for each of several trainings.
    """
    if plan.train is None and plan.only_trained:
        raise UsageError(f"{plan.only_trained[0]} goes with --train METHOD; add it, or leave it out")
    if dry:
        if plan.train is not None:
            raise UsageError("--dry-run says nothing of trainings, whose cost is told before they begin; leave one out")
        from specbench.cli.run import show_dry_run
        from specbench.sweeps.running import predict

        show_dry_run(predict(plan), as_json)
        return
    from specbench.sweeps import read_sweep, run_sweep

    if plan.train is not None:
        show_trainings(_trained(plan), as_json, write=True)
        return
    read = read_sweep(run_sweep(plan))
    show_sweep(read, as_json, write=True)
    refuse_failed(read.cells)


def refuse_failed(cells: Any) -> None:
    """Raise :class:`~specbench.common.errors.PluginFault` where a cell's method failed, when all is shown."""
    from specbench.common.errors import PluginFault

    failed = cells[cells["fault"].notna()]
    if len(failed):
        raise PluginFault(
            "; ".join(dict.fromkeys(f"{row['label']}: {row['fault']}" for row in failed.to_dict("records")))
        )


def _trained(plan: TrainedSweepPlan) -> Path:
    """Trains, and sweeps what was trained."""
    from specbench.report.terminal.trainings import costs_table
    from specbench.runner.plan import Loading
    from specbench.runner.progress import notes_of, noting
    from specbench.sweeps.trainings import sweep_trainings
    from specbench.training.training_grid import Cells
    from specbench.training.training_plan import TrainPlan

    say = noting(notes_of(plan))
    base = TrainPlan.model_validate(
        {
            **{name: getattr(plan, name) for name in (*Loading.model_fields, "seed", "quiet")},
            "method": plan.train,
            "prompts": plan.train_prompts,
            "answers": plan.train_answers,
            "limit": plan.train_limit,
            "settings": tuple(plan.train_set),
            "held_out": plan.train_held_out,
            "max_new_tokens": plan.train_tokens,
            "out": plan.trained,
        }
    )
    return sweep_trainings(
        plan, Cells(base, say), lambda due: output.stderr().print(costs_table(due, plan.max_hours)), say
    )


def show_trainings(path: Path, as_json: bool, write: bool = False) -> None:
    """Print a sweep over trainings; ``write`` also writes the CSV and the picture into its folder."""
    from specbench.report.terminal.trainings import trainings_table
    from specbench.sweeps.trained import read_trainings

    read = read_trainings(path)
    if write:
        from specbench.common.files import write_text_atomic
        from specbench.report.formats import to_csv
        from specbench.report.pictures.training_cost import save_training_cost

        write_text_atomic(path / "trainings.csv", to_csv(read.cells, float_format="%.6g"))
        save_training_cost(read.cells, path, _trained_caption(read))
    if as_json:
        import json

        rows = json.loads(read.cells.to_json(orient="records"))
        entries = [entry.model_dump(mode="json") for entry in read.entries]
        output.emit_json({"folder": str(path), "method": read.method, "trainings": entries, "cells": rows})
        return
    console = output.stdout()
    console.print()
    console.print(trainings_table(read))
    console.print(f"\ntrainings: {path}", soft_wrap=True)


def show_sweep(read: Any, as_json: bool, write: bool = False) -> None:
    """Print a sweep; ``write`` also writes the CSV and the pictures into its folder."""
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
    from specbench.report.formats import to_csv

    write_text_atomic(read.path / "cells.csv", to_csv(read.cells, float_format="%.6g"))


def _trained_caption(read: Any) -> str:
    from specbench.results.run_file import device_name

    if not read.sweeps:
        return ""
    run = next(iter(next(iter(read.sweeps.values())).runs.values())).run
    return f"{read.method} for {read.model} {run['model']['dtype']} · {run['task']['name']} · {device_name(run)}"


def _caption(run: Mapping[str, Any]) -> str:
    from specbench.results.run_file import device_name

    model, task = run["model"], run["task"]
    return f"{model['name']} {model['dtype']} · {task['name']} · {device_name(run)}"
