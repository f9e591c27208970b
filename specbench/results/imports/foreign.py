"""Recognise the file of a tool and read it; what the readers share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from specbench.common import UsageError, damaged, in_64_bits, json_object, one_line, parse_json, read_bytes, validate
from specbench.results.imports.schema import ImportedRequest, ImportedRow

#: What to do about a file that cannot be imported.
TODO = "write it again with the tool"
#: Most bytes of a tool's file.
_LARGEST = 256 << 20

Measured: TypeAlias = tuple[ImportedRow, list[ImportedRequest]]


class Foreign(BaseModel):
    """Base class for the parts of a tool's file that are used; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, protected_namespaces=())


@dataclass(frozen=True)
class ToolFile:
    """A tool's file: its JSON objects, of which most files have one."""

    path: Path
    sha256: str
    objects: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> ToolFile:
        """Read a file with one JSON object, or with one in each line."""
        content = read_bytes(path, TODO, _LARGEST)
        first, _, rest = content.strip().partition(b"\n")
        by_line = path.suffix == ".jsonl" or (rest and first.rstrip().endswith(b"}"))
        parts = {f"{path} line {at}": line for at, line in enumerate(content.splitlines(), 1) if line.strip()}
        found = parts if by_line else {str(path): content}
        objects = [json_object(parse_json(part, where, TODO), where, TODO) for where, part in found.items()]
        if not objects:
            raise damaged(path, "it is empty", TODO)
        in_64_bits(objects, path, TODO)
        return cls(path, hashlib.sha256(content).hexdigest(), objects)


def build(row: Mapping[str, Any], requests: Sequence[Mapping[str, Any]], path: Path) -> Measured:
    """Validate a row and its requests, and that they have the same counts."""
    made = validate(ImportedRow, row, path, TODO)
    found = [
        validate(ImportedRequest, {**each, "row": made.label}, f"{path}, request {at}", TODO)
        for at, each in enumerate(requests)
    ]
    completed = [request for request in found if request.state == "completed"]
    counts = {state: sum(request.state == state for request in found) for state in ("completed", "failed")}
    if found and (wrong := next((name for name, count in counts.items() if count != getattr(made, name)), None)):
        raise damaged(path, f"it holds {counts[wrong]} {wrong} requests but counts {getattr(made, wrong)}", TODO)
    tokens = sum(request.output_tokens or 0 for request in completed)
    if found and made.output_tokens not in (None, tokens):
        raise damaged(path, f"its requests have {tokens} output tokens but it counts {made.output_tokens}", TODO)
    return made, found


def facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text, without those that are unset or have parts of their own."""
    return {name: _short(value) for name, value in found.items() if isinstance(value, str | int | float)}


def _short(value: str | float) -> str:
    return one_line(value, 80) if isinstance(value, str) else f"{value:g}"


def read_results(path: Path, label: str) -> list[Measured]:
    """Read the file of a tool: a row, or several with the labels ``label@…`` if the file has several benchmarks."""
    from specbench.results.imports import aiperf, guidellm, vllm_bench

    if path.suffix == ".csv":  # rounded figures without settings, and no request
        raise UsageError(f"cannot import {path}: a CSV file has too little; name the JSON file of the same benchmark")
    file = ToolFile.read(path)
    for tool in (vllm_bench, guidellm, aiperf):
        if tool.is_mine(file.objects[0]):
            return tool.read(file, label)
    raise UsageError(
        f"cannot import {path}: it is no result of vllm bench serve, guidellm or aiperf; name the file of "
        "--save-result, guidellm's JSON report, or profile_export_aiperf.json"
    )
