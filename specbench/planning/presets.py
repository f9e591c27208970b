"""Protocols of published measurements by name (``presets.toml``): task, prompt, token budget and temperature."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.common import toml, unknown_name


class Preset(BaseModel):
    """Protocol of a paper: a registered task with its options and limits.

    ``first`` selects the first prompts of the data instead of random ones.
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
def load_presets() -> dict[str, Preset]:
    """Return all presets by name."""
    found = toml.read(Path(__file__).with_name("presets.toml"), "install specbench-llm again")
    return {name: Preset.model_validate(table) for name, table in found.items()}


def preset(name: str) -> Preset:
    """Return a preset by name; the UsageError for an unknown name lists similar names."""
    known = load_presets()
    if name not in known:
        raise unknown_name("preset", name, known, see="a method's own preset is --set METHOD.preset=NAME")
    return known[name]
