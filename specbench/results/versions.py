"""Versions: a run's records and summary from and to its files, in the names of the run's own schema. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.common import UsageError
from specbench.common.errors import first_fault
from specbench.common.reading import damaged, fitted, json_object, parse_json
from specbench.results.run_file import known
from specbench.results.schema import SCHEMA_VERSION, RequestRecord
from specbench.results.schema_1 import projection_from_1, record_from_1, summary_from_1, summary_to_1
from specbench.results.summary_schema import RunSummary


def record_of(line: bytes, schema: int, where: str, todo: str) -> RequestRecord:
    """A line of ``requests.jsonl``.

    Args:
        line: as it is written.
        schema: of the run.
        where: how the error names it.
        todo: what helps, as an order.

    Raises:
        UsageError: it does not fit; names the field.
    """
    if schema != SCHEMA_VERSION:
        found = json_object(parse_json(line, where, todo), where, todo)
        return fitted(RequestRecord, line_of(found, schema, where, todo), where, todo)
    try:  # without the dictionary between: half of the time
        return RequestRecord.model_validate_json(line)
    except ValidationError as error:
        raise damaged(where, first_fault(error), todo) from None


def line_of(found: dict[str, Any], schema: int, where: str, todo: str) -> dict[str, Any]:
    """The same as a dictionary with today's names, unchecked; arguments as of :func:`record_of`.

    Raises:
        UsageError: it has names of two schemas.
    """
    if schema == SCHEMA_VERSION:
        return found
    try:
        return record_from_1(found)
    except ValueError as error:
        raise damaged(where, str(error), todo) from None


def summary_of(content: Mapping[str, Any], schema: int, where: Path, todo: str) -> RunSummary:
    """The content of ``summary.json``; the other arguments as of :func:`record_of`.

    Raises:
        UsageError: it does not fit; names the field.
    """
    try:
        named = content if schema == SCHEMA_VERSION else summary_from_1(content)
    except ValueError as error:
        raise damaged(where, str(error), todo) from None
    return fitted(RunSummary, named, where, todo)


def projection_of(content: Mapping[str, Any], schema: int, where: Path, todo: str) -> dict[str, Any]:
    """The content of a ``projection-GPU.json`` with today's names, unchecked; arguments as of :func:`summary_of`.

    Raises:
        UsageError: it has names of two schemas.
    """
    try:
        return dict(content) if schema == SCHEMA_VERSION else projection_from_1(content)
    except ValueError as error:
        raise damaged(where, str(error), todo) from None


def summary_json(summary: RunSummary, schema: int) -> dict[str, Any]:
    """The content of ``summary.json`` as it is written."""
    return summary.written() if schema == SCHEMA_VERSION else summary_to_1(summary.written())


def assert_of_today(path: Path, run: Mapping[str, Any], schema: int) -> None:
    """Refuses what would put requests of today's schema beside those of an older one.

    Raises:
        UsageError: the run is of an older schema; says which version wrote it.
    """
    if schema == SCHEMA_VERSION:
        return
    commit = (known(run, "environment", "git_commit") or "")[:12]
    version = known(run, "environment", "specbench") or "of an earlier version"
    by = f"specbench {version}{commit and f' (commit {commit})'}"
    raise UsageError(
        f"{path} is of schema {schema}, written by {by}, and this version writes schema {SCHEMA_VERSION}; "
        "choose another --out, or go on with that version"
    )
