"""Verdicts: ``verdicts.jsonl`` of a scored run, right or wrong by request. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VERDICTS = "verdicts.jsonl"


def read_verdicts(folder: Path) -> dict[str, bool]:
    """The verdicts of a scored run by request key; empty when it was not scored."""
    return {line["request"]: bool(line["passed"]) for line in _lines(folder)}


def read_metrics(folder: Path) -> dict[str, dict[str, bool]]:
    """The further metrics of a scored run: name -> request key -> right or wrong."""
    found: dict[str, dict[str, bool]] = {}
    for line in _lines(folder):
        for name, passed in line.get("also", {}).items():
            found.setdefault(name, {})[line["request"]] = bool(passed)
    return found


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / VERDICTS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
