"""The folder of imported results: ``imported.json``, and ``requests.jsonl`` with a line per request, if they are known.

Nothing in it was measured by specbench, and what the tool's file does not have is absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specbench.common import (
    UsageError,
    in_64_bits,
    read_json_lines,
    read_json_object,
    schema_version,
    validate,
    write_folder,
    write_json_atomic,
    write_text_atomic,
)
from specbench.results.schema import Count, Figure, Record

IMPORTED, _REQUESTS, _SCHEMA = "imported.json", "requests.jsonl", 1
_TODO = "import the tool's file again"

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tool = Literal["vllm bench serve", "guidellm", "aiperf"]


class ImportedRequest(Record):
    """One request as a tool recorded it; a time that it did not record is None."""

    row: str
    prompt: str = Field(description="which prompt it was: its number or session in the file, or a hash of the request")
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    start_s: Seconds | None = Field(default=None, description="seconds after the row's first request")
    ttft_s: Seconds | None = None
    decode_s: Seconds | None = Field(default=None, description="seconds from the first token to the last")
    latency_s: Seconds | None = None
    gaps_s: list[Seconds] = Field(default_factory=list, description="seconds between arrivals of tokens")
    state: Literal["completed", "failed", "unfinished"] = "completed"

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None if a time or the tokens are unknown."""
        tokens = (self.output_tokens or 0) - 1
        return None if self.decode_s is None or tokens < 1 else self.decode_s / tokens


class ImportedRow(Record):
    """One benchmark of a tool: a row of the imported results."""

    label: str = Field(min_length=1, max_length=200)
    tool: Tool
    version: str = Field(default="", description="version of the tool; empty if its file does not have it")
    files: dict[str, str] = Field(description="name of each file that was read -> its sha256")
    model: str = Field(default="", description="name of the model as the tool was given it; its weights are unknown")
    begun: str = ""
    load: dict[str, str] = Field(default_factory=dict, description="how requests were sent, and latency targets")
    prompts_sha256: str = Field(default="", description="hash of the settings and the seed that made the prompts")
    completed: Count
    failed: Count = 0
    unfinished: Count = Field(default=0, description="requests that the tool cancelled or did not wait for")
    output_tokens: Count | None = None
    output_tok_s: Figure | None = Field(default=None, description="output tokens per second of the whole benchmark")
    times: dict[Literal["ttft_s", "tpot_s", "itl_s", "latency_s"], dict[str, Seconds]] = Field(
        default_factory=dict, description="mean and percentiles (p50, p99) as the tool computed them"
    )
    figures: dict[str, Figure | list[Figure]] = Field(
        default_factory=dict, description="goodput and acceptance of drafts, by the tool's own definitions and names"
    )
    remarks: list[str] = Field(default_factory=list, description="warnings of the tool")
    recorded: Count = Field(default=0, description="requests in requests.jsonl; 0 if only the tool's figures are known")

    @property
    def measured_by(self) -> str:
        """The tool and its version."""
        return f"{self.tool} {self.version or '(version not in its file)'}"


class _Head(Record):
    """Schema of ``imported.json``."""

    schema_version: int
    specbench: str
    rows: list[ImportedRow] = Field(min_length=1)


@dataclass(frozen=True)
class ImportedRun:
    """Imported results; the first row is the baseline of the others."""

    path: Path
    rows: Sequence[ImportedRow]
    requests: Mapping[str, Sequence[ImportedRequest]]


def is_import(path: Path) -> bool:
    """Whether a folder holds imported results."""
    return os.path.isfile(path / IMPORTED)


def write_import(out: Path, version: str, found: Sequence[tuple[ImportedRow, Sequence[ImportedRequest]]]) -> Path:
    """Write a new folder of imported results below ``out``; ``version`` is specbench's."""
    rows = [row.model_copy(update={"recorded": len(requests)}) for row, requests in found]
    head = _Head(schema_version=_SCHEMA, specbench=version, rows=rows).model_dump(mode="json")
    lines = [request.model_dump_json(exclude_defaults=True) for _, requests in found for request in requests]

    def write(folder: Path) -> None:
        write_json_atomic(folder / IMPORTED, head)
        if lines:
            write_text_atomic(folder / _REQUESTS, "".join(f"{line}\n" for line in lines))

    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    return write_folder(out, f"import-{rows[0].label}", digest, write)


def read_import(path: Path) -> ImportedRun:
    """Read a folder of imported results; UsageError if its files are damaged or do not belong together."""
    file = path / IMPORTED
    content = read_json_object(file, _TODO)
    in_64_bits(content, file, _TODO)
    schema_version(content, file, _SCHEMA, _TODO)
    rows = validate(_Head, content, file, _TODO).rows
    requests: dict[str, list[ImportedRequest]] = {row.label: [] for row in rows}
    if len(requests) < len(rows):
        raise UsageError(f"cannot read {path}: two of its rows have one name; {_TODO}")
    for number, line in _lines(path) if any(row.recorded for row in rows) else ():
        request = validate(ImportedRequest, line, f"{path / _REQUESTS} line {number}", _TODO)
        requests.setdefault(request.row, []).append(request)
    counted = {row.label: row.recorded for row in rows}
    if {label: len(found) for label, found in requests.items()} != counted:
        raise UsageError(f"cannot read {path}: {_REQUESTS} has other requests than {IMPORTED} counts; {_TODO}")
    return ImportedRun(path, rows, requests)


def _lines(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    return read_json_lines(path / _REQUESTS, _TODO)
