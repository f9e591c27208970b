"""Run a sweep's plan to its folder, through configurations and workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError, keywords
from specbench.decoding import Method
from specbench.hardware import read_profile
from specbench.planning import MemoryBudget, Resolved, Settings, check_ready, parse_settings, resolve, settings_of_all
from specbench.profiling import check_device
from specbench.runner import notes_of, printing_to
from specbench.sweeps import grid
from specbench.sweeps.driver import Asked, drive
from specbench.sweeps.grid import Grid
from specbench.sweeps.progress import SweepProgress
from specbench.sweeps.sweep_plan import SweepPlan, TunePlan
from specbench.sweeps.table import Sweep

if TYPE_CHECKING:
    from specbench.sweeps.executors import Executor
    from specbench.sweeps.worker import Worker


def run_sweep(plan: SweepPlan) -> Path:
    """Run a sweep to its end, continuing a stopped one with the same model, prompts, machine and software."""
    plan = plan.settled()
    notes = notes_of(plan)
    say = printing_to(notes)
    asked = _asked(plan, say)
    running = workers(plan, say)
    try:
        with SweepProgress(notes) as progress:
            return drive(asked, running, progress)
    finally:
        running.close()


def run_tuning(plan: TunePlan) -> tuple[Path, list[tuple[int, float]]]:
    """Tune the options of one method; return the sweep's folder, and (rows, seconds) of steps up to the widest tree."""
    from specbench.sweeps.executors import Here

    notes = notes_of(plan)
    say = printing_to(notes)
    asked = _asked(plan, say)
    say(f"{len(asked.grid.cells)} settings; loading …")
    made = worker(plan)
    running = Here(lambda: made)
    try:
        curve = made.step_seconds()
        with SweepProgress(notes) as progress:
            return drive(asked, running, progress), curve
    finally:
        running.close()


@keywords(SweepPlan)
def sweep(plan: SweepPlan) -> Sweep:
    """Measure settings of methods on the same prompts, next to AR.

    It is ``specbench sweep`` with its options as keyword arguments: the same call continues an interrupted sweep, and
    a wider grid decodes only its new configurations.

    Returns:
        The sweep: ``.summary``, ``.frame()`` and ``.folder``.

    Raises:
        SpecbenchError: the reason in one line. Finished requests are kept.
    """
    return Sweep(run_sweep(plan))


def _asked(plan: SweepPlan, say: Callable[[str], None]) -> Asked:
    """Prepare the sweep of a plan; mistakes in the plan are found here, and an alias's settings are reported."""
    plan = plan.anchored("out", "data_dir", "profile", "grammar")
    check_device(plan)
    until = plan.until
    resolved, cells = expanded(plan, insist=plan.yes)
    check_ready(resolved)
    steps = read_profile(plan.profile) if plan.profile else None
    for line in resolved.notes if plan.verbose else resolved.warnings:
        say(line)
    return Asked(
        cells,
        plan.out,
        plan.search,
        until,
        plan.data_dir,
        not plan.no_score,
        steps,
        acceptance=plan.acceptance is not None,
    )


def expanded(plan: SweepPlan, insist: bool = True) -> tuple[Resolved, Grid]:
    """The run whose methods are the configurations, and their grid; ``insist`` allows any size."""
    lengths = () if plan.acceptance is None else grid.read_lengths(plan.acceptance)
    axes = () if lengths else grid.read_axes(plan.tried if isinstance(plan, TunePlan) else plan.grid, plan.grid_file)
    found: list[Grid] = []

    def expand(labels: Mapping[str, str], settings: Settings) -> tuple[Method, ...]:
        # Swept options override an alias's settings, but not the user's.
        heads = settings_of_all(labels, "head", plan.head) if plan.head is not None else []
        asked = parse_settings(labels, [*plan.settings, *heads])
        found.append(
            grid.expand_draft_lengths(labels, settings, lengths, asked, refusal)
            if lengths
            else grid.expand(labels, settings, axes, insist, asked, refusal)
        )
        return (found[0].baseline, *(cell.method for cell in found[0].cells))

    most = max(grid.concurrency_of(axes))
    room = MemoryBudget.of(plan, most)

    def refusal(method: Method) -> str | None:
        # By the machine's total memory, not the free memory: a worker's grid must equal the driver's, whatever has
        # filled up meanwhile. The memory of a cluster's machines is unknown here.
        return None if plan.executor == "ray" else room.refusal([method], now=False)

    return resolve(plan.plan(concurrency=most, base="none", patience=plan.patience), expand), found[0]


def worker(plan: SweepPlan) -> Worker:
    """Creates a worker where it runs."""
    from specbench.sweeps.worker import Worker

    resolved, grid = expanded(plan)
    return Worker(resolved, plan.held_out, grid.concurrency)


def workers(plan: SweepPlan, say: Callable[[str], None]) -> Executor:
    """The devices of a sweep, one worker each."""
    from specbench.sweeps.executors import Here
    from specbench.sweeps.processes import Processes, places

    make = partial(worker, plan)
    if plan.executor == "ray":
        from specbench.sweeps.cluster import Cluster

        return Cluster(make, plan.workers)
    devices = _devices() if plan.device in ("auto", "cuda") else []
    count = plan.workers or len(devices) or 1
    if devices and count > len(devices):
        raise UsageError(f"--workers {count}, but there are {len(devices)} GPUs; one worker has one GPU")
    if count == 1:
        say("loading …")
        return Here(make)
    say(f"starting {count} workers …")
    return Processes(make, places(count, devices[:count]))


def _devices() -> list[str]:
    """The values of CUDA_VISIBLE_DEVICES, one per GPU."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(at) for at in range(count)]


def predict(plan: SweepPlan) -> dict[str, Any]:
    """Rows, memory and step time of each configuration, including too large ones.

    See :func:`specbench.planning.dry_runs.dry_run`."""
    from specbench.planning import dry_run

    resolved, grid = expanded(plan.settled(), insist=plan.yes)
    methods = (grid.baseline, *(cell.method for cell in (*grid.cells, *grid.too_large)))
    return dry_run(resolved, methods, grid.concurrency, plan.profile)
