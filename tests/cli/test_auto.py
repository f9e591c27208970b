"""Automatic settings: the same in two runs of one command and in an interrupted one; a concurrency has its own."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support import runs

from specbench.engine import Engine
from specbench.runner.setup import calibration

COMMAND = (
    *("run", "--model", "config:tiny", "--method", "jetspec", "--head", "random", "--set", "jetspec.tree=auto"),
    *("--limit", 3, "--max-new-tokens", 12, "--no-score", "--again", "--verbose", "--out"),
)


@pytest.fixture(autouse=True)
def _another_machine_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step times are other ones whenever they are taken: rows cost nothing at first, and ever more."""
    monkeypatch.setattr(calibration, "cache_folder", lambda name: tmp_path / "cache" / name)
    looks = count()

    def seconds(engine: Engine, most: int, *_: int) -> list[tuple[int, float]]:
        dear = 1000.0 ** next(looks)
        return [(rows, 1e-4 + dear * (rows - 1) ** 2 * 1e-7) for rows in (1, 2, 4, 8, 16, 32, 64) if rows <= most]

    monkeypatch.setattr(Engine, "step_seconds", seconds)


def trees(folder: Path) -> list[int]:
    return [line["tree_rows"] for line in runs.requests_on_disk(folder) if line["method"] == "jetspec"]


def test_two_runs_of_a_command_have_the_same_trees_and_say_of_what_size(cli: Any, tmp_path: Path) -> None:
    result = [cli.ok(*COMMAND, tmp_path / name, columns=140) for name in ("one", "two")]
    one, two = (next((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert trees(one) == trees(two)
    assert json.loads((one / "times.json").read_text()) == json.loads((two / "times.json").read_text())
    row = runs.rows_on_disk(one)["jetspec"]
    words = " ".join(result[0].out.split())
    assert f"{row['rows_per_step']:.0f}" in words
    assert f"{row['rows_per_step']:.1f}" in words
    for file in (tmp_path / "cache" / "times").iterdir():
        file.unlink()
    cli.ok(*COMMAND, tmp_path / "three")
    (three,) = (tmp_path / "three").iterdir()
    assert trees(three) != trees(one), "rows are a thousand times as dear by now"


def test_a_run_that_was_broken_off_goes_on_by_the_times_that_it_began_with(cli: Any, tmp_path: Path) -> None:
    cli.ok(*COMMAND, tmp_path / "whole")
    (whole,) = (tmp_path / "whole").iterdir()
    cli.ok(*COMMAND, tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    lines = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(lines[:2]))
    for name in ("DONE", "summary.json", "likelihoods.jsonl"):
        (folder / name).unlink()
    for file in (tmp_path / "cache" / "times").iterdir():
        file.unlink()
    cli.ok(*COMMAND, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == [folder]
    assert trees(folder) == trees(whole)


def test_step_times_far_above_the_runs_own_are_said_and_measured_again(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = iter([[(rows, one_row * rows) for rows in (1, 64)] for one_row in (1.0, 1e-5)])
    monkeypatch.setattr(Engine, "step_seconds", lambda *_: next(curves))
    said = [" ".join(cli.ok(*COMMAND, tmp_path / name, columns=200).out.split()) for name in ("disturbed", "quiet")]
    disturbed, quiet = (
        runs.summary_on_disk(next((tmp_path / name).iterdir()))["engine"] for name in ("disturbed", "quiet")
    )
    assert disturbed["slow_times"]["before_s"] == 1.0 > 1.25 * disturbed["slow_times"]["run_s"] > 0
    assert "slow_times" not in quiet
    assert ["1000.0 ms before the run" in text for text in said] == [True, False]


def test_each_concurrency_of_a_sweep_has_trees_of_its_own_size(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {1: 0.0, 4: 1000.0}  # seconds of a further row, by the number of sequences

    def seconds(engine: Engine, most: int, sequences: int, *_: int) -> list[tuple[int, float]]:
        return [(rows, 1.0 + costs[sequences] * (rows - 1)) for rows in (1, 2, 4, 8, 16) if rows <= most]

    monkeypatch.setattr(Engine, "step_seconds", seconds)
    out = tmp_path / "sweeps"
    command = (
        *("sweep", "--model", "config:tiny", "--method", "jetspec", "--head", "random", "--set", "jetspec.tree=auto"),
        *("--grid", "concurrency=1,4", "--limit", 8, "--max-new-tokens", 12, "--no-score", "--out", out),
    )

    def rows() -> list[float]:
        (folder,) = out.iterdir()
        return [runs.rows_on_disk(folder / part)["jetspec"]["rows_per_step"] for part in ("c1", "c4")]

    cli.ok(*command)
    one, four = rows()
    assert one > 8
    assert four == 1
    # A sweep that goes on keeps the times that it began with, though steps take other times now.
    (folder,) = out.iterdir()
    for path in (folder / "c4", tmp_path / "cache"):
        shutil.rmtree(path)
    costs[4] = 0.0
    cli.ok(*command)
    assert rows() == [one, four]
