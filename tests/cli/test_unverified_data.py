"""Tasks with unverified data files: run, show and score name the file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import small_data
from small_data import speed
from support.runs import requests_on_disk
from support.wording import wording

TINY = ("run", "--model", "config:tiny", "--max-new-tokens", 8, "--method", "jacobi")


def file(folder: Path, name: str, rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(small_data.lines(rows))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "run.json").read_text())["task"]["data"])


def test_a_run_of_codesearchnet_stops_before_the_next_instruction(cli: Any, tmp_path: Path) -> None:
    path = file(tmp_path / "data", "codesearchnet_python_test.jsonl", speed.FUNCTIONS)
    cli.ok(*TINY, "--task", "codesearchnet", "--data-dir", path.parent, "--out", tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    assert [entry["sha256"] for entry in recorded(run)] == [sha256(path)]
    assert json.loads((run / "run.json").read_text())["task"]["options"] == {"style": "cllm"}
    assert len(requests_on_disk(run)) == 2 * len(speed.FUNCTIONS)
    assert wording(cli.refused(2, "score", run))
