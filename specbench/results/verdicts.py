"""Verdicts: ``verdicts.jsonl`` of a scored run, right or wrong by request. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, Field

from specbench.common.reading import fitted, read_json_lines

VERDICTS = "verdicts.jsonl"


class _Line(BaseModel):
    """As far as it is read: why an answer is wrong and what scored it stand there for people."""

    request: str
    passed: bool
    also: dict[str, bool] = Field(default_factory=dict)


def read_scores(folder: Path) -> tuple[dict[str, bool], dict[str, dict[str, bool]]]:
    """The verdicts of a scored run by request key, and the same of each further metric by its name.

    Both are empty when it was not scored.

    Raises:
        UsageError: it cannot be read, or a line is damaged; names the line and the field.
    """
    path, todo = folder / VERDICTS, f"python -m specbench.evals {folder} writes it anew"
    verdicts: dict[str, bool] = {}
    metrics: dict[str, dict[str, bool]] = {}
    if os.path.lexists(path):
        for number, content in read_json_lines(path, todo):
            line = fitted(_Line, content, f"{path} line {number}", todo)
            verdicts[line.request] = line.passed
            for name, passed in line.also.items():
                metrics.setdefault(name, {})[line.request] = passed
    return verdicts, metrics


def read_verdicts(folder: Path) -> dict[str, bool]:
    """The verdicts alone; arguments and errors as of :func:`read_scores`."""
    return read_scores(folder)[0]


def read_metrics(folder: Path) -> dict[str, dict[str, bool]]:
    """The further metrics alone; arguments and errors as of :func:`read_scores`."""
    return read_scores(folder)[1]
