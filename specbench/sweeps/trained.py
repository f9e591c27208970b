"""Read the folder of a sweep over trainings, and its table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError, read_json_object, schema_version, validate
from specbench.sweeps.table import ReadSweep, read_sweep

TRAININGS = "trainings.json"
SCHEMA = 1

#: Label of the untrained model.
UNTRAINED = "untrained"

#: Columns with a training's cost.
COST = ("tokens_seen", "flops", "hours", "peak_memory_bytes", "energy_j")
_TODO = "delete it and repeat the sweep's command"


def hours_of(value: float) -> str:
    """Format hours: 12.34, and 0.003 for seconds."""
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.1g}"


class Entry(BaseModel):
    """A training in ``trainings.json``; ``model`` and ``settings`` load its weights; None if it was not trained.

    ``left_out``: it did not fit into the hours; ``ended``: why it left no weights.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    label: str
    values: dict[str, Any]
    model: str | None = None
    settings: tuple[str, ...] = ()
    cost: dict[str, Any] | None = None
    left_out: bool = False
    ended: str = ""
    sweep: str | None = None


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore")

    schema_version: int
    method: str
    model: str
    cells: list[Entry]


@dataclass(frozen=True)
class ReadTrainings:
    """A sweep over trainings on disk.

    ``cells`` has a row per training and configuration: ``training``, its options, its cost (0 for the untrained model),
    and the columns of :func:`specbench.sweeps.table.cells`.
    """

    path: Path
    method: str
    model: str
    entries: tuple[Entry, ...]
    sweeps: Mapping[str, ReadSweep]
    cells: pd.DataFrame


def is_trainings(path: Path) -> bool:
    """Whether a folder is a sweep over trainings."""
    return os.path.isfile(path / TRAININGS)


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The trainings of a folder; raises as :func:`read_trainings`."""
    return tuple(_head(path).cells)


def _head(path: Path) -> _Head:
    file = path / TRAININGS
    if not os.path.isfile(file):
        raise UsageError(f"{path} is not a sweep over trainings (it has no {TRAININGS})")
    content = read_json_object(file, _TODO)
    schema_version(content, file, SCHEMA, _TODO)
    return validate(_Head, content, file, _TODO)


def read_trainings(path: Path) -> ReadTrainings:
    """Read a folder."""
    head = _head(path)
    sweeps = {entry.label: read_sweep(path / entry.sweep) for entry in head.cells if entry.sweep}
    parts = [_rows(entry, sweeps[entry.label].cells) for entry in head.cells if entry.sweep]
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return ReadTrainings(path, head.method, head.model, tuple(head.cells), sweeps, rows)


def _rows(entry: Entry, cells: pd.DataFrame) -> pd.DataFrame:
    cost = entry.cost or (dict.fromkeys(COST, 0) if entry.label == UNTRAINED else {})
    values = {f"train.{name}": value for name, value in entry.values.items()}
    front = {"training": entry.label, **values, **{name: cost.get(name, float("nan")) for name in COST}}
    return pd.concat([pd.DataFrame([front] * len(cells), index=cells.index), cells], axis=1)
