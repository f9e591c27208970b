"""Verdicts: ``verdicts.jsonl`` of a scored run, right or wrong by request."""

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
    """A hash by which an attached file names the answer that it is about, of its text or its token ids."""
    said = content if isinstance(content, str) else list(content)
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


class VerdictLine(BaseModel):
    """A line, as far as it is read; ``answer`` is the hash of the scored text (None in older files)."""

    request: str
    passed: bool
    answer: str | None = None
    also: dict[str, bool] = Field(default_factory=dict)


def read_verdict_lines(folder: Path) -> dict[str, VerdictLine]:
    """The verdicts of a scored run by request key; empty when it was not scored. UsageError for two on one request."""
    path, todo = folder / VERDICTS, f"python -m specbench.evals {folder} writes it anew"
    found: dict[str, VerdictLine] = {}
    if os.path.lexists(path):
        for number, content in read_json_lines(path, todo):
            where = f"{path} line {number}"
            line = validate(VerdictLine, content, where, todo)
            if line.request in found:
                raise damaged(where, "a second verdict on one request", todo)
            found[line.request] = line
    return found


def read_scores(folder: Path) -> tuple[dict[str, bool], dict[str, dict[str, bool]]]:
    """The verdicts of a scored run by request key, and the same of each further metric by its name; else both empty."""
    lines = read_verdict_lines(folder)
    metrics: dict[str, dict[str, bool]] = {}
    for key, line in lines.items():
        for name, passed in line.also.items():
            metrics.setdefault(name, {})[key] = passed
    return {key: line.passed for key, line in lines.items()}, metrics


def read_verdicts(folder: Path) -> dict[str, bool]:
    """The verdicts alone; arguments and errors as of :func:`read_scores`."""
    return read_scores(folder)[0]
