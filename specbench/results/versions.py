"""Versions: a run's records and summary from and to its files, in the names of the run's own schema. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.common import UsageError
from specbench.common.errors import first_fault
from specbench.results.schema import SCHEMA_VERSION, RequestRecord
from specbench.results.schema_1 import record_from_1, summary_from_1, summary_to_1
from specbench.results.summary_schema import RunSummary


def record_of(line: bytes, schema: int) -> RequestRecord:
    """A line of ``requests.jsonl``.

    Raises:
        ValueError: it does not fit; :func:`fault` says why.
    """
    if schema == SCHEMA_VERSION:
        return RequestRecord.model_validate_json(line)
    found = json.loads(line)
    return RequestRecord.model_validate(line_of(found, schema) if isinstance(found, dict) else found)


def line_of(found: dict[str, Any], schema: int) -> dict[str, Any]:
    """The same as a dictionary with today's names, unchecked.

    Raises:
        ValueError: it has names of two schemas.
    """
    return found if schema == SCHEMA_VERSION else record_from_1(found)


def summary_of(content: Mapping[str, Any], schema: int) -> RunSummary:
    """The content of ``summary.json``.

    Raises:
        ValueError: it does not fit; :func:`fault` says why.
    """
    return RunSummary.model_validate(content if schema == SCHEMA_VERSION else summary_from_1(content))


def summary_json(summary: RunSummary, schema: int) -> dict[str, Any]:
    """The same as it is written."""
    return summary.written() if schema == SCHEMA_VERSION else summary_to_1(summary.written())


def fault(error: ValueError) -> str:
    """What does not fit, in words."""
    return first_fault(error) if isinstance(error, ValidationError) else str(error)


def assert_of_today(path: Path, run: Mapping[str, Any], schema: int) -> None:
    """Refuses what would put requests of today's schema beside those of an older one.

    Raises:
        UsageError: the run is of an older schema; says which version wrote it.
    """
    if schema == SCHEMA_VERSION:
        return
    environment = run.get("environment") or {}
    commit = str(environment.get("git_commit") or "")[:12]
    by = f"specbench {environment.get('specbench', 'of an earlier version')}{commit and f' (commit {commit})'}"
    raise UsageError(
        f"{path} is of schema {schema}, written by {by}, and this version writes schema {SCHEMA_VERSION}; "
        "choose another --out, or go on with that version"
    )
