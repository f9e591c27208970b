"""``run --project GPU``: what a finished run would be on another device, beside it and never in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.hardware import Profile
    from specbench.hardware.gpus import Gpu
    from specbench.models import LoadedModel
    from specbench.runner import Plan


_SECONDS = 30.0  # for step times, where no profile is given
_CONTEXTS = (128, 512, 2048)


def add(folder: Path, gpu: Gpu, profile: Profile) -> dict[str, Any]:
    """Writes a run's projection beside its summary.

    Args:
        folder: of the run.
        gpu: onto which.
        profile: of the run's model on the run's device.

    Returns:
        What was written.

    Raises:
        UsageError: the profile is of another model, or the GPU has no figures for its dtype.
    """
    from specbench.hardware import Projection, project
    from specbench.hardware.profile import datasheet
    from specbench.results import RunFolder, read_run
    from specbench.results.read import write_projection

    read = read_run(folder)
    mine, its = read.config.model, profile.model
    if (mine.fingerprint, mine.dtype) != (its.fingerprint, its.dtype):
        raise UsageError(f"the profile is of {its.name} {its.dtype}, the run of {mine.name} {mine.dtype}; profile that")
    there = datasheet(gpu, mine.dtype)
    if there is None:
        raise UsageError(f"{gpu.name} has no figure for {mine.dtype} in the table; choose another --dtype")
    context = round(sum(r.prompt_tokens + r.output_tokens / 2 for r in read.records) / len(read.records))
    projection = Projection(profile.shape, profile.ceilings, profile.points, there)
    found = project(projection, read.summary.rows, context, read.config.concurrency)
    content = {
        "schema_version": 1,
        "gpu": gpu.name,
        "device": profile.environment["device"]["name"],
        "context": context,
        "ceilings_here": profile.ceilings.model_dump(),
        "ceilings_there": there.model_dump(),
        "rows": {
            label: {name: {"value": b.value, "low": b.low, "high": b.high} for name, b in figures.items()}
            for label, figures in found.items()
        },
    }
    with RunFolder.reopen(folder) as opened:
        write_projection(opened, gpu.name, content)
    return content


def profile_for(plan: Plan, loaded: LoadedModel, folder: Path | None, notes: Console) -> Profile:
    """The profile of that folder, or one measured now: as many steps as half a minute allows."""
    from specbench.hardware import read_profile
    from specbench.hardware.profile import ROWS, Settings

    if folder is not None:
        return read_profile(folder)
    from specbench.profiling import measure_profile

    settings = Settings(
        rows=tuple(rows for rows in ROWS if rows <= max(2, plan.max_rows)),
        contexts=_CONTEXTS,
        slots=tuple(sorted({1, plan.concurrency})),
        seconds=_SECONDS,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
    )
    return measure_profile(loaded, settings, lambda line: notes.print(f"{line} …", soft_wrap=True, markup=False))
