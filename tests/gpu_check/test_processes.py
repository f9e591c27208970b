"""Parts in processes of their own: whatever one of them does, every other figure is on disk and the page names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.wording import wording

from benchmarks.gpu_check import child, foreign, page
from benchmarks.gpu_check.catalog import PARTS, Part
from benchmarks.gpu_check.processes import Processes
from benchmarks.gpu_check.records import NOT_MEASURED, Journal, passed

LIMIT_S = 3.0  # of the part that hangs; the others are over in a tenth of it


def planted(name: str) -> Part:
    return Part(name, f"The part {name}", LIMIT_S / 2, f"support.planted_parts:{name}")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "figures.jsonl")


@pytest.fixture
def processes(tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return Processes(tmp_path, journal, {"rehearse": True}, time.monotonic() + 60, lambda text: None)


def test_four_ways_to_fail_keep_no_figure_from_the_disk(processes: Processes, journal: Journal) -> None:
    parts = [planted(name) for name in ("raises", "hangs", "aborts", "eats", "good")]
    for part in parts:
        processes.run(part)
    found = journal.outcomes()
    values = {part: [figure.value for figure in outcome.figures] for part, outcome in found.items()}
    assert values == {"raises": [3], "hangs": [4], "aborts": [5], "eats": [6], "good": [1, 2]}
    states = {part: outcome.state for part, outcome in found.items()}
    assert states == {**dict.fromkeys(["raises", "hangs", "aborts", "eats"], "failed"), "good": "done"}
    assert wording(found["raises"].why)
    assert wording(found["hangs"].why)
    assert wording(found["aborts"].why)
    assert wording(found["eats"].why)
    for name in ("raises", "hangs", "aborts"):
        log = (journal.path.parent / f"{name}.log").read_text()
        assert f"in {name}\n" in log, "the log shows the function"
    assert not passed(found)
    page.write(journal, parts)
    for kind in ("md", "html"):
        text = (journal.path.parent / f"gpu-check.{kind}").read_text()
        named = text[text.index("Parts that failed") : text.index("The part raises")]
        assert [name for name in states if name in named] == ["raises", "hangs", "aborts", "eats"]


def test_what_a_part_starts_ends_with_it(processes: Processes, journal: Journal) -> None:
    processes.run(planted("leaves"))
    pid = journal.find("pid")
    assert pid is not None
    assert _gone(int(pid))


def test_no_part_is_begun_when_the_time_is_over(processes: Processes, journal: Journal) -> None:
    processes.until = time.monotonic() - 1
    processes.run(planted("good"))
    assert journal.outcomes()["good"].state == NOT_MEASURED
    assert not journal.outcomes()["good"].figures


def test_a_part_that_the_time_cuts_off_is_not_measured(processes: Processes, journal: Journal) -> None:
    processes.until = time.monotonic() + 1
    processes.run(planted("hangs"))
    found = journal.outcomes()["hangs"]
    assert (found.state, [figure.value for figure in found.figures]) == (NOT_MEASURED, [4])


def test_a_part_that_lacks_a_package_of_the_bundle_is_not_measured(processes: Processes, journal: Journal) -> None:
    for name in ("lacks", "good"):
        processes.run(planted(name))
    found = journal.outcomes()
    assert (found["lacks"].state, [figure.value for figure in found["lacks"].figures]) == (NOT_MEASURED, [7])
    assert found["lacks"].why.startswith("nvidia-ml-py ")
    assert passed(found)


@pytest.mark.parametrize("fault", ["raise ImportError('undefined symbol: x')", "import os; os.abort()"])
def test_a_broken_flash_attn_breaks_no_part(
    fault: str, processes: Processes, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was built for another torch; it may end the process that imports it."""
    package = tmp_path / "foreign" / "flash_attn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}{os.pathsep}{package.parent}")
    for part in (planted("device"), planted("looks_for_flash"), planted("good")):
        processes.run(part)
    found = journal.outcomes()
    assert {name: one.state for name, one in found.items()} == dict.fromkeys(found, "done")
    assert [figure.value for figure in found["looks_for_flash"].figures] == [8]
    assert foreign.why_hidden(journal, "flash_attn")
    assert len([line for line in journal.lines() if line["kind"] == "imported"]) == 1, "one process has tried it"
    assert foreign.why_hidden(journal, "flash_attn_interface") == ""


def test_limits_follow_the_time_that_compiling_takes(processes: Processes, journal: Journal) -> None:
    """Twice the seconds of a part, those of the compiler as long as they were measured to be."""
    part, steps = Part("later", "", 10, "", compiles=4), next(one for one in PARTS if one.name == "steps")
    assert part.limit_s(None) == 2 * (10 + 4), "nothing is known"
    assert [part.limit_s(pace) for pace in (0.5, 1.0, 3.0)] == [20, 20, 2 * (10 + 2 * 4)]
    assert Part("first", "", 10, "", least_s=90).limit_s(9.0) == 90
    assert processes._pace() is None
    for state, seconds in (("failed", 1.0), ("done", 2.5 * steps.compiles)):
        journal.append("began", part="steps")
        journal.append("compiled", part="steps", kernels=9, seconds=seconds)
        journal.append("ended", part="steps", state=state, why="", seconds=1.0)
        assert processes._pace() == (2.5 if state == "done" else None)


def test_what_triton_compiles_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = SimpleNamespace(listener=None)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=SimpleNamespace(compilation=listening)))
    seconds = child._watch_compiler()
    for total, hit in ((1_500_000, False), (9_000_000, True), (500_000, False)):
        more: dict[str, Any] = {"src": None, "metadata": {}, "metadata_group": {}}
        listening.listener(times=SimpleNamespace(total=total), cache_hit=hit, **more)
    assert seconds == [1.5, 0.5]


def test_a_check_that_is_killed_leaves_no_part(tmp_path: Path, journal: Journal) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from benchmarks.gpu_check.catalog import Part; from benchmarks.gpu_check.processes import Processes\n"
        "from benchmarks.gpu_check.records import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "part = Part('hangs', '', 60, 'support.planted_parts:hangs')\n"
        "Processes(journal.path.parent, journal, {}, time.monotonic() + 60, lambda text: None).run(part)"
    )
    tests = Path(__file__).parents[1]
    there = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    check = subprocess.Popen([sys.executable, "-c", code, str(journal.path)], env=there)
    until = time.monotonic() + 30
    while not journal.outcomes() or not journal.outcomes()["hangs"].figures:
        assert time.monotonic() < until
        time.sleep(0.02)
    children = Path(f"/proc/{check.pid}/task/{check.pid}/children").read_text().split()
    check.send_signal(signal.SIGKILL)
    check.wait()
    assert children
    assert all(_gone(int(pid)) for pid in children)


def _gone(pid: int) -> bool:
    """Whether a process ends soon; a zombie that its parent has not waited for counts as gone."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False
