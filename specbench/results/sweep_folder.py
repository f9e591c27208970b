"""The folder of a sweep, with a run folder for each concurrency, and of a campaign, with a sweep for each block."""

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


CAMPAIGN = "campaign.json"

#: Folder of a campaign with the files of ``specbench quality``, one per model.
MODELS_QUALITY = "quality"

CAMPAIGN_SCHEMA = 1


class CampaignBlock(Record):
    """One model on one task at one temperature: a sweep whose configurations are decoded on the same prompts."""

    model: str
    task: str
    temperature: float
    methods: str = Field(description="as --method takes them; empty: those of the model's alias")
    sweep: str = Field(default="", description="the sweep's folder, below the campaign's; empty: not started")
    failed: str = Field(default="", description="why the last command could not finish it")


class Campaign(Record):
    """Content of ``campaign.json``."""

    schema_version: int = CAMPAIGN_SCHEMA
    blocks: list[CampaignBlock]


def is_campaign(path: Path) -> bool:
    """Whether a folder is the folder of a campaign."""
    return os.path.isfile(path / CAMPAIGN)


def read_campaign(path: Path) -> Campaign:
    """Return the content of a campaign's ``campaign.json``."""
    file = path / CAMPAIGN
    todo = "delete it and repeat the campaign's command"
    content = read_json_object(file, todo)
    schema_version(content, file, CAMPAIGN_SCHEMA, todo)
    return validate(Campaign, content, file, todo)


def campaign_runs(path: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over the run folders of a campaign as (name below the campaign, path), in the order of its blocks."""
    for block in read_campaign(path).blocks:
        if block.sweep:
            yield from ((f"{block.sweep}/{place.name}", place) for _, place in part_folders(path / block.sweep))
