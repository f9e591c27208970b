"""Protocols of published rows by name (``presets.toml``): task, prompt, budget and temperature."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import toml
from specbench.common.errors import unknown


class Preset(BaseModel):
    """How some paper asked: a registered task with its options and limits. ``first`` takes the first prompts of the
    data.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    paper: str
    task: str
    options: dict[str, Any] = Field(default_factory=dict)
    max_new_tokens: int
    temperature: float = 0.0
    limit: int | None = None
    first: bool = False


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    found = toml.read(Path(__file__).with_name("presets.toml"), "install specbench-llm again")
    return {name: Preset.model_validate(table) for name, table in found.items()}


def preset(name: str) -> Preset:
    """A preset by name; raises a UsageError with the nearest names."""
    known = presets()
    if name not in known:
        raise unknown("preset", name, known)
    return known[name]
