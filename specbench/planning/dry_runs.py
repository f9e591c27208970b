"""Predict rows, memory and step time of each method of a plan without loading or running a model.

Memory follows from the model's configuration (:mod:`specbench.engine.memory_budget`). Step times come from a stored
profile of this machine or of the GPU that ``--gpu`` names; else they are projected from a profile of the same model on
another device (:mod:`specbench.hardware.projection`); else they are the roofline bound from the GPU's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.common import UsageError
from specbench.decoding import Method
from specbench.engine import Widths, step_memory
from specbench.hardware import (
    ModelShape,
    Profile,
    Projection,
    StepTimes,
    bound_s,
    datasheet,
    gpus,
    newest_profile,
    read_profile,
    step_cost,
)
from specbench.models import names
from specbench.planning.auto_size import is_here, profile_here
from specbench.planning.memory_check import MemoryBudget, dtype_of
from specbench.planning.plan import PROFILES, RESULTS, Plan
from specbench.planning.resolving import Resolved

#: Assumed prompt length in tokens, because prompts are not read. It is also the context for predicted step times.
PROMPT_TOKENS = 512


def dry_run(
    resolved: Resolved, methods: Sequence[Method], slots: Sequence[int], profile: Path | None = None
) -> dict[str, Any]:
    """Predict memory and step time for each method, each running alone.

    Args:
        slots: concurrencies to predict for.
        profile: folder with the step times to use; by default the stored profile is used.

    Returns:
        JSON-ready: ``cells`` (one per method and concurrency), the basis of the prediction, and ``hint``: advice if
        step times are missing, else empty.
    """
    plan = resolved.plan
    budget = plan.max_new_tokens or max(int(task.card.info["max_new_tokens"]) for task in resolved.tasks)
    room = MemoryBudget.of(plan, max(slots))
    found = _profile(plan, profile)
    shape = room.shape or (found.shape if found and found.model.dtype == dtype_of(plan) else None)
    steps = _steps(plan, found, shape)
    capacity = PROMPT_TOKENS + budget
    cells = []
    for count in slots:
        plain = steps.seconds(1, count) if steps else None
        for method in methods:
            rows = method.rows_in(capacity)
            step = steps.seconds(rows, count) if steps else None
            cells.append(
                {
                    "label": method.label,
                    "concurrency": count,
                    "rows": rows,
                    **_memory(shape, rows, capacity, count, room),
                    "step_s": step.value if step else None,
                    "step_low_s": step.low if step else None,
                    "step_high_s": step.high if step else None,
                    "measured_rows": steps.covers(rows, count) if steps else None,
                    **_over(step, plain),
                }
            )
    return {
        "model": names.resolve(plan.model).name,
        "dtype": dtype_of(plan),
        "device": "this machine" if plan.gpu == "auto" else gpus.find(plan.gpu).name,
        "memory_bytes": room.memory,
        "capacity": capacity,
        "rates": [str(point) for point in resolved.arrivals.load.points] if resolved.arrivals else [],
        "context": PROMPT_TOKENS,
        "steps": steps.how if steps else "none",
        "cells": cells,
        "hint": "" if steps and steps.how != "bound" else _hint(plan),
    }


def _memory(shape: ModelShape | None, rows: int, capacity: int, slots: int, room: MemoryBudget) -> dict[str, Any]:
    if shape is None:
        return dict.fromkeys(("weight_bytes", "cache_bytes", "step_bytes", "fits"))
    taken = step_memory(Widths.of(shape), rows, capacity, slots, dense=room.dense)
    weights = shape.parameters * shape.weight_bytes
    fits = None if room.memory is None else weights + taken.total <= room.memory
    return {"weight_bytes": weights, "cache_bytes": taken.cache, "step_bytes": taken.step, "fits": fits}


def _over(step: _Seconds | None, plain: _Seconds | None) -> dict[str, float | None]:
    """Time of a step as a multiple of an AR step, with its interval."""
    if step is None or plain is None:
        return dict.fromkeys(("times_ar", "times_ar_low", "times_ar_high"))
    if step.low is None or step.high is None or plain.low is None or plain.high is None:
        return {"times_ar": step.value / plain.value, "times_ar_low": None, "times_ar_high": None}
    low, high = sorted((step.low / plain.low, step.high / plain.high))
    return {"times_ar": step.value / plain.value, "times_ar_low": low, "times_ar_high": high}


# ----------------------------------------------------------------------------------------------------------- step times


@dataclass(frozen=True)
class _Seconds:
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Steps:
    """Step times and their source: "measured" on the device, "projected" onto it, or the "bound" of its datasheet."""

    how: str
    seconds: Callable[[int, int], _Seconds]
    covers: Callable[[int, int], bool]


def _steps(plan: Plan, profile: Profile | None, shape: ModelShape | None) -> _Steps | None:
    if profile is None:
        return _bounds(plan, shape)
    times = StepTimes(profile.shape, profile.ceilings, profile.points)

    def covers(rows: int, slots: int) -> bool:
        return times.covers(rows, PROMPT_TOKENS, slots)

    if plan.gpu == "auto" or _of(profile, plan):
        return _Steps("measured", lambda rows, slots: _Seconds(times.seconds(rows, PROMPT_TOKENS, slots)), covers)
    there = datasheet(gpus.find(plan.gpu), dtype_of(plan))
    if there is None or shape is None:
        return None
    onto = Projection(profile.shape, profile.ceilings, profile.points, there, shape)

    def seconds(rows: int, slots: int) -> _Seconds:
        found = onto.seconds(rows, PROMPT_TOKENS, slots)
        return _Seconds(found.value, found.low, found.high)

    return _Steps("projected", seconds, covers)


def _bounds(plan: Plan, shape: ModelShape | None) -> _Steps | None:
    """Lower bounds from a GPU's datasheet; None without a datasheet or if the model's shape is unknown."""
    there = None if plan.gpu == "auto" else datasheet(gpus.find(plan.gpu), dtype_of(plan))
    if there is None or shape is None:
        return None

    def seconds(rows: int, slots: int) -> _Seconds:
        return _Seconds(bound_s(step_cost(shape, rows, PROMPT_TOKENS, slots), there))

    return _Steps("bound", seconds, lambda rows, slots: True)


def _profile(plan: Plan, folder: Path | None) -> Profile | None:
    """Read the profile of a folder, or else the newest stored one: of the requested GPU, or of any device."""
    source = names.resolve(plan.model)
    name = (source.base or source).name
    if folder is not None:
        given = read_profile(folder)
        if given.model.name != name:
            raise UsageError(
                f"cannot use the profile: it is for {given.model.name}, and the run uses {name}; name a profile of "
                f"{name} or leave --profile out"
            )
        if plan.gpu == "auto" and not is_here(given, plan):
            raise UsageError(
                f"cannot use the profile: it is for {given.gpu or given.model.device} {given.model.dtype}, and the run "
                f"uses {dtype_of(plan)} on this machine; "
                "name a GPU to project onto with --gpu, name another profile, or leave --profile out"
            )
        return given
    if plan.gpu == "auto":
        return profile_here(plan)
    folders = [Path.cwd() / PROFILES, Path.cwd() / RESULTS]

    def on_it(profile: Profile) -> bool:
        return profile.model.name == name and _of(profile, plan)

    return newest_profile(folders, on_it) or newest_profile(folders, lambda profile: profile.model.name == name)


def _of(profile: Profile, plan: Plan) -> bool:
    """Whether a profile was measured on the GPU of ``--gpu``, in the run's precision."""
    return (profile.gpu, profile.model.dtype) == (gpus.find(plan.gpu).name, dtype_of(plan))


def _hint(plan: Plan) -> str:
    where = "measures them" if plan.gpu == "auto" else "measures them, on that GPU or here to project from"
    return f"No profile of {plan.model} has step times; specbench profile --model {plan.model} {where}."
