"""Ctrl-C at the moments where the scorer once hung, waited for its slowest program, or left a process after."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.common.errors import PluginFault
from specbench.evals.grading import launch
from specbench.evals.grading.interrupts import Interrupts

SOON_S = 5.0  # the programs of these tests take twice that and more
SLEEPER = "    import time\n    time.sleep(60)\n    # {}"


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Ctrl-C as in the foreground: a shell that runs the tests in its background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of HumanEval whose programs sleep."""
    task = {"name": "humaneval", "version": 1, "options": {"style": "completion", "tests": "base"}}
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 2, "task": task}))
    rows = [{"request_id": str(i), "prompt_id": "HumanEval/53", "text": SLEEPER.format(i)} for i in range(8)]
    (tmp_path / "requests.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "verdicts.jsonl").write_text("older\n")
    return tmp_path


def ctrl_c(done: int = 0, total: int = 0) -> None:
    signal.raise_signal(signal.SIGINT)


def test_at_whatever_step_it_comes_it_ends_the_scorer(tmp_path: Path) -> None:
    """In a process of its own, for a lock that stays taken hangs it."""
    (tmp_path / "run.json").write_text('{"schema_version": 2, "task": {"name": "toy", "options": {}}}')
    texts = ["quick", "a", "b", "c", "d"]
    rows = [{"request_id": str(i), "prompt_id": "p", "text": text} for i, text in enumerate(texts)]
    (tmp_path / "requests.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, str(Path(__file__).with_name("interrupted.py")), str(tmp_path), "11"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    *faults, steps = result.stdout.splitlines()
    assert faults == []
    assert int(steps.removeprefix("steps ")) > 20


def test_it_is_not_lost_when_it_comes_with_the_last_verdict_and_where_it_is_ignored_it_stays_ignored() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        ctrl_c()
        interrupts.look()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The scorers that were started."""
    found: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if "specbench.evals" in str(arguments[0]):
                found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    return found


@pytest.mark.parametrize("after", [0, 1.5])
def test_a_ctrl_c_for_the_parent_alone_ends_the_scorer_too(run: Path, started: Any, after: float) -> None:
    begun = time.monotonic()

    def later(line: str) -> None:
        time.sleep(after)  # the programs have begun by then
        ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        launch.score_in_child(run, say=later, workers=2)
    assert time.monotonic() - begun < SOON_S + after
    assert [process.returncode for process in started] == [130]
    assert (run / "verdicts.jsonl").read_text() == "older\n"


def test_a_scorer_that_does_not_end_is_killed(
    run: Path, started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        'print(\'{"done": 0, "total": 1}\', flush=True)\ntime.sleep(60)\n'
    )
    deaf.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(deaf))
    monkeypatch.setattr(launch, "_END_S", 0.3)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch.score_in_child(run, say=lambda line: ctrl_c())
    assert time.monotonic() - begun < SOON_S
    assert started[0].wait(SOON_S) == -signal.SIGKILL


def test_a_scorer_that_says_nothing_is_ended_and_named(
    run: Path, started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text(
        f'#!{sys.executable}\nimport sys, time\nprint(\'{{"done": 0, "total": 1}}\', flush=True)\ntime.sleep(60)\n'
    )
    hanging.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(hanging))
    monkeypatch.setattr(launch, "_SILENT_S", 0.5)
    reported: list[str] = []
    with pytest.raises(PluginFault, match=r"0\.5 s"):
        launch.score_in_child(run, say=reported.append)
    assert len(reported) == 1
    assert started[0].returncode == -signal.SIGKILL
    assert (run / "verdicts.jsonl").read_text() == "older\n"
