"""Run file: what ``run.json`` says beside the configuration, and how it is read.

Whoever shows a run takes these fields from plain dictionaries; what is read has their types or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specbench.common import in_64_bits, read_json_object, validate

RUN = "run.json"

#: What helps where a file of a run is missing or damaged.
REPEAT = "restore it or repeat the run"


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Device(_Part):
    name: str | None = None
    memory_bytes: int | None = None


class _Cpu(_Part):
    model: str | None = None
    usable_cores: int | None = None
    torch_threads: int | None = None


class _Environment(_Part):
    """As far as it is shown; :class:`specbench.hardware.environment.Environment` is what was written."""

    specbench: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    ram_bytes: int | None = None
    load_average: list[float] = Field(default_factory=list)
    cpu: _Cpu | None = None
    device: _Device | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)


class _RunFile(_Part):
    digest: str = ""
    created_utc: str | None = None
    environment: _Environment | None = None
    passes: dict[str, int] = Field(default_factory=dict)

    @field_validator("created_utc")
    @classmethod
    def _is_a_time(cls, said: str | None) -> str | None:
        # Beyond these years a time has no seconds since 1970, or none in another zone. A clock that nobody has set
        # begins in 1970.
        if said is not None and not 1970 <= datetime.fromisoformat(said).year <= 9000:
            raise ValueError("a year that no run was made in")
        return said


def read_run_file(folder: Path) -> dict[str, Any]:
    """The content of a run's ``run.json``, of whatever version; its configuration is not looked at."""
    path = folder / RUN
    content = read_json_object(path, REPEAT)
    in_64_bits(content, path, REPEAT)
    validate(_RunFile, content, path, REPEAT)
    return content


def known_text(content: Mapping[str, Any], *names: str) -> str | None:
    """A word somewhere inside of ``run.json``, where it is there."""
    found: Any = content
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None or isinstance(found, dict | list) else str(found).strip()


def device_name(run: Mapping[str, Any]) -> str:
    """What a run ran on, as its environment calls it."""
    return known_text(run, "environment", "device", "name") or "unknown device"
