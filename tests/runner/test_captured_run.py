"""A whole run as a GPU does it: its steps are captured, here recorded, and what was measured of them is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import specbench
from benchmarks.gpu_check import recorder
from specbench.profiling import device_check
from specbench.results.calibration import STEPS


def padding(folder: Path) -> list[dict[str, int]]:
    """What the steps of a run were padded to; their times are measured again."""
    (steps,) = json.loads((folder / STEPS.name).read_text())["engines"]
    return [step["padded_to"] for step in steps]


def test_a_run_with_captured_steps_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "assert_graphs", lambda *_: None)  # here is a CPU, and its steps are recorded
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"a b a b {number}"}) + "\n" for number in range(3)))
    options: dict[str, Any] = {
        "model": "config:tiny",
        "method": "pld,jetspec",
        "settings": ["jetspec.head=random"],
        "graphs": "on",
    }
    options |= {"task": "prompts", "data_file": prompts, "max_new_tokens": 6, "quiet": True, "out": tmp_path}
    with recorder.installed():
        run = specbench.run(**options)
        assert [row.lossless.lossy for row in run.summary.rows if row.lossless] == [0, 0, 0]
        padded = padding(run.folder)
        assert all({"1", "2"} <= rows.keys() for rows in padded)
        for made in ("DONE", "summary.json"):
            (run.folder / made).unlink()
        log = run.folder / "requests.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:4]))
        again = specbench.run(**options)
    assert again.folder == run.folder
    assert padding(run.folder) == padded
    assert all(row.prompts == 3 for row in again.summary.rows)
