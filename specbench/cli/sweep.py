"""``specbench sweep``: options of methods as a grid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.common.errors import unknown

if TYPE_CHECKING:
    from specbench.decoding import Method
    from specbench.runner import Plan
    from specbench.sweeps import Worker
    from specbench.sweeps.executors import Executor, Make
    from specbench.sweeps.grid import Axis, Grid


_EXECUTORS = ("local", "ray")
_SEARCHES = ("grid", "halving")

# Parameters that mean what they mean for run.
_OF_PLAN = (
    "method", "task", "model", "settings", "head", "task_settings", "temperature", "top_k", "top_p", "seed",
    "limit", "prompt_seed", "first",
    "max_new_tokens", "dtype", "device", "attention", "graphs", "compile", "revision", "trust_remote_code",
    "data_dir", "data_file", "out", "simulate",
)  # fmt: skip


def sweep(
    method: str | None = options.METHOD,
    grid: list[str] = typer.Option(
        [],
        "--grid",
        help="Values of an option, or of concurrency: n=8,16 or r=0.5:0.9:0.1; repeatable.",
        metavar="OPT=VALUES",
    ),
    grid_file: Path | None = typer.Option(
        None, "--grid-file", help="The same as YAML: a mapping, grid.", exists=True, dir_okay=False
    ),
    task: str = typer.Option(options.DEFAULT_TASK, "--task", help="The task."),
    model: str = options.MODEL,
    gpu: str = typer.Option("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus."),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="Prompts to choose by, drawn by lot.", show_default="all not held out"
    ),
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    held_out: int = typer.Option(0, "--held-out", min=0, help="Other prompts, to judge the best cell by."),
    search: str = typer.Option("grid", "--search", help="grid: every cell on every prompt; halving: slow cells drop."),
    until: str | None = typer.Option(
        None, "--until-ci", help="Stop a cell when its speedup is known to ± this share.", metavar="PERCENT"
    ),
    max_new_tokens: int | None = options.BUDGET,
    temperature: float = typer.Option(0.0, "--temperature", min=0.0, help="0 is greedy."),
    top_k: int = options.TOP_K,
    top_p: float = options.TOP_P,
    seed: int = options.SEED,
    settings: list[str] = options.SET,
    head: str | None = options.HEAD,
    task_settings: list[str] = options.TASK_SET,
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    attention: str = options.ATTENTION,
    graphs: str = options.GRAPHS,
    compile: bool = options.COMPILE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    data_dir: Path | None = options.DATA_DIR,
    data_file: Path | None = options.DATA_FILE,
    simulate: list[str] = typer.Option(
        [], "--simulate-acceptance", help="As of run, for every cell: MEAN[:SPREAD].", metavar="SPEC"
    ),
    profile: Path | None = typer.Option(
        None, "--profile", help="A folder of specbench profile, to predict with.", exists=True, file_okay=False
    ),
    executor: str = typer.Option("local", "--executor", help="local: this machine; ray: a Ray cluster."),
    workers: int | None = typer.Option(
        None, "--workers", min=1, help="Devices to use.", show_default="all GPUs, or one worker on a CPU"
    ),
    yes: bool = typer.Option(False, "--yes", help="Run a grid however large it is."),
    no_score: bool = typer.Option(False, "--no-score", help="Do not judge the answers."),
    out: Path = typer.Option(options.RESULTS, "--out", help="Folder that receives the sweep's folder."),
    as_json: bool = options.JSON,
) -> None:
    """Measure settings of methods beside each other: which is best, and which are as good.

    Every prompt is decoded by all cells, one right after the other, and by ar. Repeating the command goes on where it
    stopped; a wider grid decodes only its new cells.
    """
    arguments = plan_arguments(locals())
    from specbench.hardware import read_profile
    from specbench.sweeps import Sweep, drive, read_sweep
    from specbench.sweeps.grid import read_axes
    from specbench.sweeps.search import Kind

    options.assert_gpu(gpu)
    if executor not in _EXECUTORS:
        raise unknown("executor", executor, _EXECUTORS)
    if search not in _SEARCHES:
        raise unknown("search", search, _SEARCHES)
    if "," in task:
        raise UsageError("a sweep has one task; run it once for each")
    axes = read_axes(grid, grid_file)
    plan, cells = make(axes, arguments, yes)
    steps = read_profile(profile) if profile else None
    asked = Sweep(cells, out, cast(Kind, search), _share(until), data_dir, not no_score, steps)
    notes = output.stderr()
    for line in plan.said:
        notes.print(line, soft_wrap=True, markup=False)
    from specbench.cli.progress import SweepProgress

    running = _executor(executor, workers, device, partial(worker, axes, arguments, held_out), notes)
    try:
        with SweepProgress(notes) as progress:
            path = drive(asked, running, progress)
    finally:
        running.close()
    read = read_sweep(path)
    show_sweep(read, as_json, write=True)


def plan_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`make` takes of a command's parameters, its ``locals()``; what the command lacks is as usual."""
    usual: dict[str, Any] = {"head": None, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "simulate": []}
    return {"repeats": 1, **{name: given.get(name, usual.get(name)) for name in _OF_PLAN}}


def make(axes: Sequence[Axis], arguments: Mapping[str, Any], insist: bool) -> tuple[Plan, Grid]:
    """The plan whose methods are the cells, and the grid they come from."""
    from specbench.runner.plan import settings_of_all
    from specbench.sweeps import grid

    found: list[Grid] = []
    head = arguments["head"]

    def expand(names: Sequence[str], settings: Sequence[str]) -> tuple[Method, ...]:
        # What an alias sets gives way to what is swept; what the user sets does not.
        mine = [*arguments["settings"], *(settings_of_all(names, "head", head) if head is not None else [])]
        found.append(grid.expand(names, settings, axes, insist, asked=mine))
        return (found[0].baseline, *(cell.method for cell in found[0].cells))

    most = max(grid.concurrency_of(axes))
    return options.make_plan(**arguments, concurrency=most, expand=expand), found[0]


def worker(axes: Sequence[Axis], arguments: Mapping[str, Any], held_out: int) -> Worker:
    """A worker, made where it works."""
    from specbench.sweeps import Worker

    plan, _ = make(axes, arguments, insist=True)
    return Worker(plan, held_out)


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
    model, task = run["model"], run["task"]
    return f"{model['name']} {model['dtype']} · {task['name']} · {run['environment']['device']['name']}"


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(f"--until-ci {text}: write a share in per cent, as in --until-ci 2%")
    return share


def _executor(kind: str, workers: int | None, device: str, make: Make, notes: Any) -> Executor:
    from specbench.sweeps.executors import Here
    from specbench.sweeps.processes import Processes, places

    if kind == "ray":
        from specbench.sweeps.cluster import Cluster

        return Cluster(make, workers)
    devices = _devices() if device in ("auto", "cuda") else []
    count = workers or len(devices) or 1
    if devices and count > len(devices):
        raise UsageError(f"--workers {count}, but there are {len(devices)} GPUs; one worker has one GPU")
    if count == 1:
        notes.print("loading …")
        return Here(make)
    notes.print(f"starting {count} workers …")
    return Processes(make, places(count, devices[:count]))


def _devices() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name, one per GPU."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(at) for at in range(count)]
