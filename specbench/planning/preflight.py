"""Checks of a plan before minutes are spent on loading its model: data, profile, folder, memory, engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.backends import Row
from specbench.common import EngineFault, UsageError, check_can_make
from specbench.hardware import gpus, read_profile
from specbench.planning.memory_check import assert_fits
from specbench.planning.resolving import Resolved


def check_ready(resolved: Resolved) -> None:
    """Whether a plan's data, profile, folder and memory are there, as far as that is known without its model."""
    plan = resolved.plan
    assert_fits(plan, resolved.methods, plan.concurrency)
    if plan.profile is not None:
        read_profile(plan.profile)
    check_can_make(plan.out)
    for task in resolved.tasks:
        _ = task.instance


def missing_engines(rows: Sequence[Row]) -> Iterator[EngineFault]:
    """What of the rows of a plan is not installed, each as the sentence that says so; nothing is started."""
    for row in rows:
        if row.url is None:
            try:
                row.backend.version(row.options)
            except EngineFault as fault:
                yield EngineFault(f"{row.label}: {fault}")


def projected_gpu(name: str | None, profile: Path | None) -> gpus.Gpu | None:
    """The GPU of ``--project``; UsageError for a profile and nothing to project onto."""
    if name is None and profile is not None:
        raise UsageError("--profile has the step times for --project; name the GPU with --project GPU")
    return None if name is None else gpus.find(name)
