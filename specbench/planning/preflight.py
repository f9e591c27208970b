"""Check a plan's data, profile, output folder, memory and engines before its model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.backends import Row
from specbench.common import EngineFault, UsageError, check_can_make
from specbench.hardware import gpus, read_profile
from specbench.planning.grammar import grammar_source
from specbench.planning.memory_check import assert_fits
from specbench.planning.resolving import Resolved


def check_ready(resolved: Resolved) -> None:
    """Raise an error if a plan's memory, profile, output folder or task data do not suffice, without its model."""
    plan = resolved.plan
    assert_fits(plan, resolved.methods, plan.concurrency)
    if plan.profile is not None:
        read_profile(plan.profile)
    check_can_make(plan.out)
    if grammar := plan.sampling.grammar:
        grammar_source(grammar)
    for task in resolved.tasks:
        _ = task.instance


def missing_engines(rows: Sequence[Row]) -> Iterator[EngineFault]:
    """Yield an error for each row whose engine is not installed. No engine is started."""
    for row in rows:
        if row.url is None:
            try:
                row.backend.version(row.options)
            except EngineFault as fault:
                yield EngineFault(f"{row.label}: {fault}")


def projected_gpu(name: str | None, profile: Path | None) -> gpus.Gpu | None:
    """Return the GPU of ``--project``, or None; UsageError for ``--profile`` without it."""
    if name is None and profile is not None:
        raise UsageError("--profile has the step times for --project; name the GPU with --project GPU")
    return None if name is None else gpus.find(name)
