"""Read ``verdicts.jsonl`` of a scored run: whether the answer of each request is correct."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from specbench.common import damaged, read_json_lines, validate

VERDICTS = "verdicts.jsonl"


def answer_hash(content: str | Sequence[int]) -> str:
    """Hash of an answer's text or token ids, by which attached files identify the answer."""
    hashed = content if isinstance(content, str) else list(content)
    return hashlib.sha256(json.dumps(hashed).encode()).hexdigest()[:16]


class VerdictLine(BaseModel):
    """The fields of a line that are read; ``answer`` is the hash of the scored text (None in older files)."""

    request: str
    passed: bool
    answer: str | None = None
    also: dict[str, bool] = Field(default_factory=dict)


def read_verdict_lines(folder: Path) -> dict[str, VerdictLine]:
    """Return the lines by request key; empty if the run was not scored. Two lines for one request are a UsageError."""
    path, todo = folder / VERDICTS, f"python -m specbench.evals {folder} writes it again"
    found: dict[str, VerdictLine] = {}
    if os.path.lexists(path):
        for number, content in read_json_lines(path, todo):
            where = f"{path} line {number}"
            line = validate(VerdictLine, content, where, todo)
            if line.request in found:
                raise damaged(where, "there is already a verdict for this request", todo)
            found[line.request] = line
    return found


def read_scores(folder: Path) -> tuple[dict[str, bool], dict[str, dict[str, bool]]]:
    """Return the verdicts by request key, and those of each further metric by its name; both empty if not scored."""
    lines = read_verdict_lines(folder)
    metrics: dict[str, dict[str, bool]] = {}
    for key, line in lines.items():
        for name, passed in line.also.items():
            metrics.setdefault(name, {})[key] = passed
    return {key: line.passed for key, line in lines.items()}, metrics


def read_verdicts(folder: Path) -> dict[str, bool]:
    """Return only the verdicts of :func:`read_scores`."""
    return read_scores(folder)[0]
