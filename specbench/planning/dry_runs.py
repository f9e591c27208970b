"""Dry run: rows, memory and step time of each method of a plan, predicted; nothing is loaded and nothing run.

Memory follows from the model's configuration (:mod:`specbench.engine.memory_budget`). Step times come from a stored
profile of this machine or of the GPU that ``--gpu`` names, else they are projected from a profile of the same model
(:mod:`specbench.hardware.projection`), else they are the bound of the GPU's datasheet.
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

#: Prompts are not read here; theirs are taken for so long. It is also the context that step times are predicted at.
PROMPT_TOKENS = 512


def dry_run(
    resolved: Resolved, methods: Sequence[Method], slots: Sequence[int], profile: Path | None = None
) -> dict[str, Any]:
    """What a run of each method alone would take.

    Args:
        slots: numbers of sequences stepped together; every method is predicted at each.
        profile: folder of the step times to predict with; default is what is stored.

    Returns:
        JSON-ready: ``cells``, what they were predicted from, and ``hint``, empty where nothing is missing.
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
            rows = method.max_rows
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
    """How many steps of AR a step takes, projected by the same story."""
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
    """Where step times come from: "measured" on the device, "projected" onto it, or the "bound" of its datasheet."""

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
    """What a GPU's datasheet allows; None of a machine that has none, and of a model whose shape is not known."""
    there = None if plan.gpu == "auto" else datasheet(gpus.find(plan.gpu), dtype_of(plan))
    if there is None or shape is None:
        return None

    def seconds(rows: int, slots: int) -> _Seconds:
        return _Seconds(bound_s(step_cost(shape, rows, PROMPT_TOKENS, slots), there))

    return _Steps("bound", seconds, lambda rows, slots: True)


def _profile(plan: Plan, folder: Path | None) -> Profile | None:
    """That of a folder; else the newest stored one: of the GPU that is asked for, or of any device to project from."""
    source = names.resolve(plan.model)
    name = (source.base or source).name
    if folder is not None:
        given = read_profile(folder)
        if given.model.name != name:
            raise UsageError(f"the profile is of {given.model.name}, the run of {name}; give one of that, or none")
        if plan.gpu == "auto" and not is_here(given, plan):
            raise UsageError(
                f"the profile is of {given.gpu or given.model.device} {given.model.dtype}, and the run is of "
                f"{dtype_of(plan)} on this machine; "
                "name a GPU to project onto with --gpu, or give another profile, or none"
            )
        return given
    if plan.gpu == "auto":
        return profile_here(plan)
    folders = [Path.cwd() / PROFILES, Path.cwd() / RESULTS]

    def on_it(profile: Profile) -> bool:
        return profile.model.name == name and _of(profile, plan)

    return newest_profile(folders, on_it) or newest_profile(folders, lambda profile: profile.model.name == name)


def _of(profile: Profile, plan: Plan) -> bool:
    """Whether it was measured on the GPU that is named, in the precision of the run."""
    return (profile.gpu, profile.model.dtype) == (gpus.find(plan.gpu).name, dtype_of(plan))


def _hint(plan: Plan) -> str:
    where = "stores them" if plan.gpu == "auto" else "stores them, there, or here to be projected"
    return f"No profile of {plan.model} tells step times; specbench profile --model {plan.model} {where}."
