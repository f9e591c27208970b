"""``specbench sweep``: measure a grid of options; with ``--tune``, recommend the options of one method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from specbench.cli import options, output
from specbench.common import UsageError, flag_of, parse_flags
from specbench.sweeps import CampaignPlan, TrainedSweepPlan, TunePlan


@options.takes(
    CampaignPlan,
    shown=(
        "file", "method", "grid", "grid_file", "task", "data_file", "model", "head", "limit", "held_out", "search",
        "until_ci", "max_new_tokens", "seed", "settings", "out", "verbose", "train", "train_grid", "max_hours",
    ),
)  # fmt: skip
def sweep(
    plan: CampaignPlan,
    tune: bool = typer.Option(
        False, "--tune", help="Recommend options of one method, by halving over its own list or --grid."
    ),
    as_json: bool = options.JSON,
    dry: bool = options.DRY_RUN,
) -> None:
    """Compare settings of methods: which is best, and which are as good.

    Every prompt is decoded by all configurations, one right after the other, and by ar.
    Repeating the command continues it; a wider grid decodes only its new
    configurations. With --train the grid is measured for each of several
    trainings. With --tune the winner is measured on other prompts. Several
    models, tasks or temperatures, or --file, make a campaign: a sweep for each.
    """
    if tune:
        _tune(plan, as_json, dry)
        return
    from specbench.sweeps import is_several

    if is_several(plan):
        from specbench.cli.campaigns import campaign

        campaign(plan, as_json, dry)
        return
    if plan.train is not None and plan.acceptance is not None:
        raise UsageError("--acceptance cannot be used with --train; sweep a trained head with --head FOLDER")
    if plan.train is None and plan.only_trained:
        raise UsageError(f"{plan.only_trained[0]} needs --train METHOD; add it, or leave {plan.only_trained[0]} out")
    if dry:
        if plan.train is not None:
            raise UsageError(
                "--dry-run does not cover trainings, whose cost is printed before they start; leave one out"
            )
        from specbench.cli.commands.run import show_dry_run
        from specbench.sweeps import predict

        show_dry_run(predict(plan), as_json)
        return
    from specbench.sweeps import read_sweep, run_sweep

    if plan.train is not None:
        show_trainings(_trained(plan), as_json, write=True)
        return
    from specbench.cli.latest import remember

    read = read_sweep(run_sweep(plan))
    remember(read.path)
    show_sweep(read, as_json, write=True, verbose=plan.verbose)
    refuse_failed(read.cells)


#: Options of a sweep that tuning sets itself.
_NOT_TUNED = (
    "acceptance", "search", "until_ci", "profile", "executor", "workers", "yes", "simulate",
)  # fmt: skip


def _tune(plan: TrainedSweepPlan, as_json: bool, dry: bool) -> None:
    """Print the best options of a method here, in a sentence with its evidence."""
    given = plan.model_fields_set
    own = CampaignPlan.model_fields.keys() - TunePlan.model_fields.keys()
    unused = sorted(flag_of(CampaignPlan, name).name for name in given & {*own, *_NOT_TUNED})
    if dry or unused:
        raise UsageError(f"{'--dry-run' if dry else unused[0]} cannot be used with --tune; leave one of them out")
    if "method" not in given:
        raise UsageError("--tune takes one method; name it with --method")
    tuning = parse_flags(TunePlan, {name: getattr(plan, name) for name in given})
    from specbench.report import sweep_advice
    from specbench.sweeps import read_sweep, run_tuning

    path, curve = run_tuning(tuning)
    read = read_sweep(path)
    write_cells(read)
    found = sweep_advice(next(iter(read.runs.values())).run, read.cells, curve, tuning.method)
    if as_json:
        output.emit_json({"folder": str(path), **found})
        refuse_failed(read.cells)
        return
    console = output.stdout()
    for line in found["sentences"]:
        console.print(line, markup=False)
    console.print(f"\nsweep: {path} (specbench show has every setting)", soft_wrap=True)
    refuse_failed(read.cells)


def refuse_failed(cells: Any) -> None:
    """Raise :class:`~specbench.common.errors.PluginFault` where a cell's method failed, when all is shown."""
    from specbench.common import PluginFault

    failed = cells[cells["fault"].notna()]
    if len(failed):
        raise PluginFault(
            "; ".join(dict.fromkeys(f"{row['label']}: {row['fault']}" for row in failed.to_dict("records")))
        )


def _trained(plan: TrainedSweepPlan) -> Path:
    """Train, and sweep the trained models."""
    from specbench.report import render_terminal, training_costs
    from specbench.runner import notes_of, printing_to
    from specbench.sweeps import sweep_trainings

    notes, say = output.stderr(), printing_to(notes_of(plan))
    return sweep_trainings(plan, lambda due: notes.print(render_terminal(training_costs(due, plan.max_hours))), say)


def show_trainings(path: Path, as_json: bool, write: bool = False) -> None:
    """Print a sweep over trainings; ``write`` also writes the CSV and the picture into its folder."""
    from specbench.report import render_terminal, trainings_report
    from specbench.sweeps import read_trainings

    read = read_trainings(path)
    if write:
        from specbench.common import write_text_atomic
        from specbench.report import frame_csv, save_training_cost

        write_text_atomic(path / "trainings.csv", frame_csv(read.cells, float_format="%.6g"))
        save_training_cost(read.cells, path, _trained_caption(read))
    if as_json:
        import json

        rows = json.loads(read.cells.to_json(orient="records"))
        entries = [entry.model_dump(mode="json") for entry in read.entries]
        output.emit_json({"folder": str(path), "method": read.method, "trainings": entries, "cells": rows})
        return
    console = output.stdout()
    console.print()
    console.print(render_terminal(trainings_report(read)))
    console.print(f"\ntrainings: {path}", soft_wrap=True)


def show_sweep(read: Any, as_json: bool, write: bool = False, verbose: bool = False) -> None:
    """Print a sweep; ``write`` also writes the CSV and the pictures into its folder."""
    if read.head.get("acceptance"):
        _show_acceptance(read, as_json, write)
        return
    from specbench.report import render_terminal, sweep_report

    run = next(iter(read.runs.values())).run
    if write:
        from specbench.report import drawn_cells, sweep_title, write_sweep_charts

        write_cells(read)
        write_sweep_charts(drawn_cells(read.cells), read.path, sweep_title(run).caption)
    if as_json:
        import json

        rows = json.loads(read.cells.to_json(orient="records"))
        output.emit_json({"folder": str(read.path), "sweep": dict(read.head), "cells": rows})
        return
    console = output.stdout()
    console.print()
    console.print(render_terminal(sweep_report(run, read.cells, verbose)))
    if not read.finished:
        console.print("This sweep is not complete; repeat its command to go on.", style="dim")
    console.print(f"\nsweep: {read.path}", soft_wrap=True)


def _show_acceptance(read: Any, as_json: bool, write: bool) -> None:
    """Print a sweep over the draft length; ``write`` also writes its curves, as JSON, CSV and a picture."""
    from specbench.analysis import ACCEPTANCE
    from specbench.report import curves_frame, curves_table, frame_csv, render_terminal, save_acceptance, sweep_title
    from specbench.sweeps import acceptance_curves

    curves, title = acceptance_curves(read), sweep_title(next(iter(read.runs.values())).run)
    if write:
        from specbench.common import write_text_atomic

        curves.write(read.path / ACCEPTANCE)
        write_text_atomic(read.path / "acceptance.csv", frame_csv(curves_frame(curves)))
        save_acceptance(curves, read.path, title.caption)
    if as_json:
        output.emit_json({"folder": str(read.path), "acceptance": curves.model_dump(mode="json")})
        return
    console = output.stdout()
    console.print()
    console.print(render_terminal([title.over_tables(), curves_table(curves)]))
    if not read.finished:
        console.print("This sweep is not complete; repeat its command to go on.", style="dim")
    console.print(f"\nsweep: {read.path} ({ACCEPTANCE} is a baseline for specbench compare)", soft_wrap=True)


def write_cells(read: Any) -> None:
    """Write ``cells.csv`` into a sweep's folder."""
    from specbench.common import write_text_atomic
    from specbench.report import frame_csv

    write_text_atomic(read.path / "cells.csv", frame_csv(read.cells, float_format="%.6g"))


def _trained_caption(read: Any) -> str:
    from specbench.results import device_name

    if not read.sweeps:
        return ""
    run = next(iter(next(iter(read.sweeps.values())).runs.values())).run
    return f"{read.method} for {read.model} {run['model']['dtype']} · {run['task']['name']} · {device_name(run)}"
