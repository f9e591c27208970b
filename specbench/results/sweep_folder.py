"""The folder of a sweep: ``sweep.json`` with its configurations, and a run folder for each concurrency."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from specbench.common import UsageError, in_64_bits, read_json_object, schema_version, validate
from specbench.results.calibration import StoredTimes
from specbench.results.schema import Record

SWEEP = "sweep.json"

#: Version of ``sweep.json``; run folders have their own version.
SWEEP_SCHEMA = 1


def is_sweep(path: Path) -> bool:
    """Whether a folder is the folder of a sweep."""
    return os.path.isfile(path / SWEEP)  # Path.is_file would raise for some paths


class _Cell(Record):
    """A configuration of the sweep."""

    method: str
    values: dict[str, str | int | float | bool | None]


class _Head(Record):
    """Schema of ``sweep.json``."""

    schema_version: int
    digest: str
    cells: dict[str, _Cell]
    too_large: dict[str, _Cell]
    concurrency: list[PositiveInt] = Field(min_length=1)
    tuning: list[str]
    held_out: list[str]
    search: str
    until_interval: float | None
    acceptance: bool = False
    times: dict[str, StoredTimes] = Field(default_factory=dict)


def read_head(path: Path) -> dict[str, Any]:
    """Return the content of a sweep folder's ``sweep.json``."""
    file, todo = path / SWEEP, "delete it and repeat the sweep's command"
    if not os.path.isdir(path) or not os.path.exists(file):
        raise UsageError(
            f"cannot read {path}: it is not a sweep (it has no {SWEEP}); name a folder that specbench sweep wrote"
        )
    content = read_json_object(file, todo)
    in_64_bits(content, file, todo)
    schema_version(content, file, SWEEP_SCHEMA, todo)
    head = validate(_Head, content, file, todo).model_dump(mode="json")
    return {name: value for name, value in head.items() if value or name not in ("times", "acceptance")}


def part_folder(path: Path, concurrency: int) -> Path:
    """Path of a sweep's run folder for one concurrency."""
    return path / f"c{concurrency}"


def part_folders(path: Path) -> Iterator[tuple[int, Path]]:
    """Iterate over the existing run folders of a sweep as (concurrency, path); UsageError if there are none."""
    counts = [count for count in read_head(path)["concurrency"] if part_folder(path, count).is_dir()]
    if not counts:
        raise UsageError(f"cannot read {path}: its run folders (c1, …) are missing; repeat the sweep's command")
    yield from ((count, part_folder(path, count)) for count in counts)
