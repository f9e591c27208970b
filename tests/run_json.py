"""Run JSON: the files of a run's folder read as they are, by no reader of the code's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of the summary by their method's label."""
    return {row["method"]: row for row in summary(folder)["rows"]}


def requests(folder: Path) -> list[dict[str, Any]]:
    """The lines that are whole; none where nothing is written yet."""
    file = folder / "requests.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
