"""The check as a whole: its first line, its exit codes, and what becomes of figures that were there before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.wording import wording

from benchmarks.gpu_check import __main__ as program
from benchmarks.gpu_check.catalog import Part
from benchmarks.gpu_check.records import NOT_MEASURED, Journal

GOOD = Part("good", "The good part", 10, "support.planted_parts:good")
RAISES = Part("raises", "The bad part", 10, "support.planted_parts:raises")


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(program, "DEVICE", Part("device", "The device", 10, "support.planted_parts:device"))
    monkeypatch.setattr(program, "PARTS", [GOOD, RAISES])


def test_the_first_line_says_what_will_be_run_and_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.check(tmp_path, [GOOD, RAISES], 90, rehearse=True) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("gpu-check (a rehearsal): good 10 s, raises 10 s; about 0 min 30 s ")
    assert "at most 1 min 30 s;" in first
    assert str(tmp_path / "figures.jsonl") in first
    assert last == f"{tmp_path / 'gpu-check.html'}: NOT passed; parts that failed: raises"


def test_a_second_check_puts_the_first_ones_figures_aside_and_a_part_by_itself_does_not(tmp_path: Path) -> None:
    for _ in range(2):
        assert program.check(tmp_path, [GOOD], 60, rehearse=True) == 0
    assert [path.name for path in sorted(tmp_path.glob("figures*"))] == ["figures-1.jsonl", "figures.jsonl"]
    program.check(tmp_path, [RAISES], 60, rehearse=True, again=True)
    assert list(Journal(tmp_path / "figures.jsonl").outcomes()) == ["device", "good", "raises"]
    page = (tmp_path / "gpu-check.md").read_text()
    assert "| two | 2 ms |" in page


def test_a_part_by_itself_takes_no_figures_of_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(tmp_path / "figures.jsonl").append("device", rehearse=True, name="another GPU", versions={})
    for _ in range(2):  # what was refused must not be what the next one goes by
        assert program.check(tmp_path, [GOOD], 60, rehearse=True, again=True) == 2
    assert wording.sentences(capsys.readouterr().out)


def test_without_a_device_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "DEVICE", Part("device", "The device", 10, "support.planted_parts:no_device"))
    assert program.check(tmp_path, [GOOD], 60, rehearse=False) == 3
    assert list(Journal(tmp_path / "figures.jsonl").outcomes()) == ["device"]
    assert wording.sentences((tmp_path / "gpu-check.md").read_text())


def test_less_time_measures_the_first_parts_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = Part("hangs", "", 10, "support.planted_parts:hangs")
    later = Part("later", "", 10, "support.planted_parts:good")
    monkeypatch.setattr(program, "PARTS", [GOOD, hangs, later])
    assert program.check(tmp_path, [GOOD, hangs, later], 4, rehearse=True) == 0
    found = Journal(tmp_path / "figures.jsonl").outcomes()
    states = {name: one.state for name, one in found.items()}
    assert states == {"device": "done", "good": "done", **dict.fromkeys(["hangs", "later"], NOT_MEASURED)}
    assert program.check(tmp_path / "none", [GOOD], 0, rehearse=True) == 1, "nothing was measured at all"


def test_a_full_disk_ends_the_check_in_a_line_and_keeps_what_was_measured(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from benchmarks.gpu_check import __main__ as program; from benchmarks.gpu_check.catalog import Part\n"
        "program.DEVICE = Part('device', '', 10, 'support.planted_parts:device')\n"
        "program.PARTS = [Part('good', '', 10, 'support.planted_parts:good')]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))\n"
        "sys.exit(program.main(['--rehearse', '--only', 'good', '--out', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", code, "600", str(tmp_path)]  # bytes of a file: it is cut off within a line
    there = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}{os.pathsep}{Path(__file__).parents[2]}"}
    done = subprocess.run(command, capture_output=True, text=True, env=there)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{tmp_path}: File too large" in done.stderr
    journal = Journal(tmp_path / "figures.jsonl")
    assert not journal.path.read_bytes().endswith(b"\n")
    assert journal.outcomes()["device"].state == "done"
    assert "one " in done.stdout, "measured figures are at least printed"
    command[3] = str(1 << 20)
    assert subprocess.run(command, capture_output=True, env=there).returncode == 0
    assert {name: one.state for name, one in journal.outcomes().items()} == {"device": "done", "good": "done"}


def test_a_line_that_a_crash_cut_off_costs_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.append("device", name="a GPU")
    with journal.path.open("a") as file:
        file.write(json.dumps({"kind": "figure", "part": "x"})[:-5])
    assert journal.last("device") == {"kind": "device", "name": "a GPU"}
    assert not journal.outcomes()
    journal.append("began", part="y")
    assert list(journal.outcomes()) == ["y"]
