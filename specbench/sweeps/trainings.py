"""Trainings of a sweep: each makes a model, and the same grid is swept on every one of them. No torch before that.

Beside them the grid is swept on the model that nobody trained: what a training gained is over that, and its cost is 0.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specbench.common import UsageError
from specbench.common.files import safe_name, write_json_atomic, write_lock
from specbench.sweeps.grid import expand, read_axes
from specbench.sweeps.plan import SweepPlan, TrainedSweepPlan
from specbench.sweeps.running import expanded, run_sweep
from specbench.sweeps.trained import SCHEMA, TRAININGS, UNTRAINED, Entry, is_trainings, read_entries


class Predicted(Protocol):
    """What a training will take."""

    @property
    def tokens(self) -> int: ...
    @property
    def flops(self) -> float | None: ...
    @property
    def hours(self) -> float: ...


class Made(Protocol):
    """Weights of a finished training."""

    @property
    def model(self) -> str: ...
    @property
    def settings(self) -> tuple[str, ...]: ...
    @property
    def card(self) -> Mapping[str, Any]: ...


class Cell(Protocol):
    """One training."""

    @property
    def label(self) -> str: ...
    @property
    def values(self) -> Mapping[str, Any]: ...


class Trainer(Protocol):
    """What trains; see ``specbench.training.cells``. Its option is the method's that takes what is trained, if any."""

    @property
    def method(self) -> str: ...
    @property
    def option(self) -> str | None: ...

    def cell(self, values: Mapping[str, str]) -> Any: ...
    def prepare(self, cells: Sequence[Any]) -> None: ...
    def predict(self, cell: Any) -> Predicted: ...
    def made(self, cell: Any) -> Made | None: ...
    def train(self, cell: Any) -> Made: ...


@dataclass(frozen=True)
class Due:
    """What a training will take, or that it is done.

    Attributes:
        label: its values.
        predicted: None of one that is done.
        hours: that it took, or will take.
    """

    label: str
    predicted: Predicted | None
    hours: float


def sweep_trainings(
    plan: TrainedSweepPlan,
    trainer: Trainer,
    told: Callable[[Sequence[Due]], None],
    say: Callable[[str], None],
) -> Path:
    """Trains what is missing and sweeps every model, going on where the same call stopped.

    Args:
        plan: as the user gave it.
        trainer: of the method that is trained.
        told: takes what all trainings will take, before the first of them begins.
        say: takes a line for the user.

    Returns:
        The folder: ``trainings.json``, and the folder of a sweep for each model.

    Raises:
        SpecbenchError: what went wrong, in one line. Finished trainings and requests are kept.
    """
    axes = read_axes(plan.train_grid) if plan.train_grid else ()
    chosen = [
        dict(zip([axis.option for axis in axes], values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    if not axes:
        raise UsageError("nothing to train by; write --train-grid OPTION=V,V,… as in --train-grid texts=100,400")
    cells = [trainer.cell(values) for values in chosen]
    swept = plan.method or trainer.method
    own = SweepPlan.model_validate({name: getattr(plan, name) for name in SweepPlan.model_fields} | {"method": swept})
    if trainer.option:  # what the method needs is not there yet
        expand([swept], own.settings, read_axes(own.grid, own.grid_file), plan.yes)
    else:
        expanded(own, insist=plan.yes)  # a mistake in the grid is found before a training is begun
    folder = plan.out / f"trainings-{safe_name(f'{plan.train}-{own.task}')}-{_digest(own, plan)}"
    folder.mkdir(parents=True, exist_ok=True)
    with write_lock(folder):
        trainer.prepare(cells)
        done = {cell.label: trainer.made(cell) for cell in cells}
        due = [_due(trainer, cell, done[cell.label]) for cell in cells]
        told(due)
        # A head that nobody trained does not exist.
        entries = [] if trainer.option else [Entry(label=UNTRAINED, values={}, model=plan.model)]
        named = {UNTRAINED, *done}
        before = read_entries(folder) if is_trainings(folder) else ()  # of another --train-grid
        spent = sum(each.hours for each in due if each.predicted is None)
        for cell in cells:
            made = done[cell.label]
            if made is None:
                will = trainer.predict(cell).hours
                if plan.max_hours is not None and spent + will > plan.max_hours:
                    say(f"{cell.label} is left out: it would take {will:.2f} h, and {spent:.2f} of "
                        f"{plan.max_hours:g} h are spent; raise --max-hours to train it")  # fmt: skip
                    entries.append(Entry(label=cell.label, values=dict(cell.values), left_out=True))
                    continue
                say(f"training {cell.label} …")
                made = trainer.train(cell)
                spent += _hours(made)
            entries.append(
                Entry(
                    label=cell.label,
                    values=dict(cell.values),
                    model=made.model,
                    settings=made.settings,
                    cost=made.card.get("cost"),
                )
            )
        for at, entry in enumerate(entries):
            if entry.model is not None:
                say(f"sweeping {entry.label} …")
                settings = (*own.settings, *entry.settings)
                # A sweep's own name says nothing of a head's weights.
                into = folder / safe_name(entry.label.replace(" ", "-"))
                changes = {"model": entry.model, "settings": settings, "out": into}
                place = run_sweep(own.model_copy(update=changes))
                entries[at] = entry.model_copy(update={"sweep": str(place.relative_to(folder))})
                _write(folder, plan, [*(each for each in before if each.label not in named), *entries])
    return folder


def _due(trainer: Trainer, cell: Cell, made: Made | None) -> Due:
    if made is not None:
        return Due(cell.label, None, _hours(made))
    predicted = trainer.predict(cell)
    return Due(cell.label, predicted, predicted.hours)


def _hours(made: Made) -> float:
    return float((made.card.get("cost") or {}).get("hours", 0.0))


def _write(folder: Path, plan: TrainedSweepPlan, entries: Sequence[Entry]) -> None:
    written = [entry.model_dump(mode="json") for entry in entries]
    write_json_atomic(
        folder / TRAININGS, {"schema_version": SCHEMA, "method": plan.train, "model": plan.model, "cells": written}
    )


def _digest(own: SweepPlan, plan: TrainedSweepPlan) -> str:
    """Of what all trainings and sweeps have in common, so that more of them go into the same folder."""
    deciding = {
        "model": own.model,
        "method": own.method,
        "task": own.task,
        "limit": own.limit,
        "held_out": own.held_out,
        "train": plan.train,
        "set": list(plan.train_set),
        "prompts": plan.train_prompts,
        "train_limit": plan.train_limit,
        "seed": own.seed,
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()[:8]
