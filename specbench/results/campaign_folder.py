"""The folder of a campaign: ``campaign.json`` with its blocks, and a sweep's folder for each block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from specbench.common import read_json_object, schema_version, validate
from specbench.results.schema import Record
from specbench.results.sweep_folder import part_folders

CAMPAIGN = "campaign.json"

#: Folder of a campaign with the files of ``specbench quality``, one per model.
MODELS_QUALITY = "quality"

CAMPAIGN_SCHEMA = 1
_TODO = "delete it and repeat the campaign's command"


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
    content = read_json_object(file, _TODO)
    schema_version(content, file, CAMPAIGN_SCHEMA, _TODO)
    return validate(Campaign, content, file, _TODO)


def campaign_runs(path: Path) -> Iterator[tuple[str, Path]]:
    """Iterate over the run folders of a campaign as (name below the campaign, path), in the order of its blocks."""
    for block in read_campaign(path).blocks:
        if block.sweep:
            yield from ((f"{block.sweep}/{place.name}", place) for _, place in part_folders(path / block.sweep))
