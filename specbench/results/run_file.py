"""Read ``run.json`` and check the fields that reports use besides the configuration.

Reports take these fields from plain dictionaries; a file whose fields have other types is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specbench.common import in_64_bits, read_json_object, validate

RUN = "run.json"

#: Advice for a missing or damaged file of a run.
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
    """The fields that reports show; :class:`specbench.hardware.environment.Environment` writes more."""

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
    def _is_a_time(cls, text: str | None) -> str | None:
        # Other years have no valid time in seconds since 1970, or not in every time zone. A clock that was never set
        # starts in 1970.
        if text is not None and not 1970 <= datetime.fromisoformat(text).year <= 9000:
            raise ValueError("the year has to be from 1970 to 9000")
        return text


def read_run_file(folder: Path) -> dict[str, Any]:
    """Return the content of a run's ``run.json``, of any version; the configuration in it is not checked."""
    path = folder / RUN
    content = read_json_object(path, REPEAT)
    in_64_bits(content, path, REPEAT)
    validate(_RunFile, content, path, REPEAT)
    return content


def known_text(content: Mapping[str, Any], *names: str) -> str | None:
    """Return a nested value of ``run.json`` as text, or None if it is missing."""
    found: Any = content
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None or isinstance(found, dict | list) else str(found).strip()


def device_name(run: Mapping[str, Any]) -> str:
    """Name of the device that a run used."""
    return known_text(run, "environment", "device", "name") or "unknown device"
