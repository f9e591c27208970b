"""Sweep the same grid on the model of each of several trainings, and on the untrained model, whose cost is 0."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.common import NothingLearnt, UsageError, flag_of, safe_name, sole_use, write_json_atomic
from specbench.planning import Loading, assign_labels, parse_settings
from specbench.sweeps.grid import Axis, expand, read_axes
from specbench.sweeps.running import expanded, run_sweep
from specbench.sweeps.sweep_plan import SweepPlan, TrainedSweepPlan
from specbench.sweeps.trained import SCHEMA, TRAININGS, UNTRAINED, Entry, hours_of, is_trainings, read_entries

if TYPE_CHECKING:
    from specbench.training import Cell, Cells, Made, Predicted


@dataclass(frozen=True)
class Due:
    """Hours that a training will take, or took; ``predicted`` is None for a finished one."""

    label: str
    predicted: Predicted | None
    hours: float


def sweep_trainings(
    plan: TrainedSweepPlan,
    announce: Callable[[Sequence[Due]], None],
    say: Callable[[str], None],
    trainer: Cells | None = None,
) -> Path:
    """Train what is missing and sweep every model, continuing where the same call stopped; return the folder.

    It contains ``trainings.json`` and a sweep folder for each model. ``announce`` receives the predicted cost of all
    trainings before the first one starts.
    """
    plan, trainer = plan.anchored("out", "data_dir", "profile", "grammar"), trainer or _trainer(plan, say)
    axes = _axes(plan)
    chosen = [
        dict(zip([axis.option for axis in axes], values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    cells = [trainer.cell(values) for values in chosen]
    _check_different(cells)
    swept = plan.method or trainer.method
    own = SweepPlan.model_validate({name: getattr(plan, name) for name in SweepPlan.model_fields} | {"method": swept})
    if trainer.option:  # the weights that the method needs do not exist yet
        labels = assign_labels([swept])
        expand(labels, parse_settings(labels, own.settings), read_axes(own.grid, own.grid_file), plan.yes)
    else:
        expanded(own, insist=plan.yes)  # find mistakes in the grid before any training
    folder = plan.out / f"trainings-{safe_name(f'{plan.train}-{own.task}')}-{_digest(own, plan)}"
    folder.mkdir(parents=True, exist_ok=True)
    with sole_use(folder):
        trainer.prepare(cells)
        done = {cell.label: trainer.made(cell) for cell in cells}
        due = [_due(trainer, cell, done[cell.label]) for cell in cells]
        announce(due)
        entries = _Entries(folder, plan)
        if not trainer.option:  # an untrained head does not exist
            entries.put(Entry(label=UNTRAINED, values={}, model=plan.model))
        for cell in cells:
            entries.put(_entry(cell, done[cell.label]))
        entries.write()
        spent = sum(each.hours for each in due if each.predicted is None)
        for cell in cells:
            made = done[cell.label]
            if made is None:
                will = trainer.predict(cell).hours
                if plan.max_hours is not None and spent + will > plan.max_hours:
                    say(f"{cell.label} is left out: it would take {hours_of(will)} h, and {hours_of(spent)} of "
                        f"{plan.max_hours:g} h are spent; raise --max-hours to train it")  # fmt: skip
                    entries.put(Entry(label=cell.label, values=dict(cell.values), left_out=True))
                    continue
                say(f"training {cell.label} …")
                try:
                    made = trainer.train(cell)
                except NothingLearnt as error:
                    say(f"{cell.label} left no weights: {error}")
                    entries.put(Entry(label=cell.label, values=dict(cell.values), ended=str(error)))
                    entries.write()
                    continue
                spent += _hours(made)
                entries.put(_entry(cell, made))
                entries.write()
        entries.write()
        for entry in entries.mine:
            if entry.model is not None:
                say(f"sweeping {entry.label} …")
                settings = (*own.settings, *entry.settings)
                # A sweep's own name does not identify a head's weights.
                into = folder / _folder_name(entry.label)
                changes = {"model": entry.model, "settings": settings, "out": into}
                place = run_sweep(own.model_copy(update=changes))
                entries.put(entry.model_copy(update={"sweep": str(place.relative_to(folder))}))
                entries.write()
    return folder


def _trainer(plan: TrainedSweepPlan, say: Callable[[str], None]) -> Cells:
    from specbench.training import Cells, TrainPlan  # imports torch

    options = {
        "method": plan.train, "prompts": plan.train_prompts, "answers": plan.train_answers, "limit": plan.train_limit,
        "given": plan.train_given, "settings": tuple(plan.train_set), "held_out": plan.train_held_out,
        "max_new_tokens": plan.train_tokens, "out": plan.trained,
    }  # fmt: skip
    shared = {name: getattr(plan, name) for name in (*Loading.model_fields, "seed", "quiet")}
    return Cells(TrainPlan.model_validate({**shared, **options}), say)


class _Entries:
    """All trainings of a folder: those of calls with another ``--train-grid``, then those of this call."""

    def __init__(self, folder: Path, plan: TrainedSweepPlan) -> None:
        self._folder, self._plan = folder, plan
        self._before = {each.label: each for each in (read_entries(folder) if is_trainings(folder) else ())}
        self._mine: dict[str, Entry] = {}

    @property
    def mine(self) -> tuple[Entry, ...]:
        """The trainings of this call."""
        return tuple(self._mine.values())

    def put(self, entry: Entry) -> None:
        """Store the state of a training; an earlier sweep of the same weights stays valid."""
        before = self._before.get(entry.label)
        if entry.sweep is None and before and (before.model, before.settings) == (entry.model, entry.settings):
            entry = entry.model_copy(update={"sweep": before.sweep})
        self._mine[entry.label] = entry

    def write(self) -> None:
        others = [each for label, each in self._before.items() if label not in self._mine]
        written = [entry.model_dump(mode="json") for entry in (*others, *self.mine)]
        head = {"schema_version": SCHEMA, "method": self._plan.train, "model": self._plan.model}
        write_json_atomic(self._folder / TRAININGS, {**head, "cells": written})


def _entry(cell: Cell, made: Made | None) -> Entry:
    known = Entry(label=cell.label, values=dict(cell.values))
    if made is None:
        return known
    cost = made.card.get("cost")
    return known.model_copy(update={"model": made.model, "settings": tuple(made.settings), "cost": cost})


def _axes(plan: TrainedSweepPlan) -> tuple[Axis, ...]:
    if not plan.train_grid:
        raise UsageError(
            "no training options to vary; write --train-grid OPTION=V,V,… as in --train-grid texts=100,400"
        )
    try:
        axes = read_axes(plan.train_grid)
    except UsageError as error:
        raise UsageError(str(error).replace("--grid", "--train-grid")) from None
    for axis in axes:
        if axis.label:
            raise UsageError(
                f"--train-grid {axis.written}: all trainings are for one method; write {axis.option} without its name"
            )
    return axes


def _check_different(cells: Sequence[Cell]) -> None:
    seen: dict[str, str] = {}
    for cell in cells:
        values = json.dumps(dict(cell.values), sort_keys=True, default=str)
        if values in seen:
            raise UsageError(f"--train-grid has one training twice, {seen[values]} and {cell.label}; remove one")
        seen[values] = cell.label


def _folder_name(label: str) -> str:
    """Folder for a training's sweeps; two labels never share one."""
    stem = label.replace(" ", "-")
    if (name := safe_name(stem)) == stem:
        return name
    return f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def _due(trainer: Cells, cell: Cell, made: Made | None) -> Due:
    if made is not None:
        return Due(cell.label, None, _hours(made))
    predicted = trainer.predict(cell)
    return Due(cell.label, predicted, predicted.hours)


def _hours(made: Made) -> float:
    return float((made.card.get("cost") or {}).get("hours", 0.0))


#: Options of a sweep that add configurations to the same folder.
_WIDENED = {"grid", "grid_file", "search", "until_ci"}
_UNRECORDED = {name for name in SweepPlan.model_fields if not flag_of(SweepPlan, name).recorded}
_OF_TRAININGS = {
    "train",
    "train_set",
    "train_prompts",
    "train_answers",
    "train_limit",
    "train_held_out",
    "train_tokens",
}


def _digest(own: SweepPlan, plan: TrainedSweepPlan) -> str:
    """Hash of what all trainings and sweeps have in common, so that further ones go into the same folder."""
    deciding = {
        **own.model_dump(mode="json", exclude=_WIDENED | _UNRECORDED, exclude_defaults=True),
        **plan.model_dump(mode="json", include=_OF_TRAININGS, exclude_defaults=True),
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()[:8]
