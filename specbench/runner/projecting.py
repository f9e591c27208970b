"""Predict a finished run on another device; the projection is stored in a separate file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.analysis import read_run, write_projection
from specbench.common import UsageError
from specbench.hardware import ROWS, Gpu, Profile, Projection, Settings, datasheet, project, read_profile
from specbench.models import LoadedModel
from specbench.planning import Resolved
from specbench.profiling import measure_profile
from specbench.results import RunFolder

_SECONDS = 30.0  # for step times, if no profile is given
_CONTEXTS = (128, 512, 2048)


def add(folder: Path, gpu: Gpu, profile: Profile) -> dict[str, Any]:
    """Write a run's projection onto a GPU next to its summary, from a profile of the run's model and device, and return
    it.
    """
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


def profile_for(resolved: Resolved, model: LoadedModel, say: Callable[[str], None]) -> Profile:
    """The plan's profile, or one measured now with as many steps as half a minute allows."""
    plan = resolved.plan
    if plan.profile is not None:
        return read_profile(plan.profile)
    settings = Settings(
        rows=tuple(rows for rows in ROWS if rows <= max(2, resolved.max_rows)),
        contexts=_CONTEXTS,
        slots=tuple(sorted({1, plan.concurrency})),
        seconds=_SECONDS,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
        native=plan.native,
    )
    return measure_profile(model, settings, lambda line: say(f"{line} …"))
