"""The checks of chaos fail where something is lost, half-written or unsaid; one trial as it is run (slow)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes
from support.wording import wording

from chaos import checks, guests
from chaos.commands import Ended, commands
from specbench.common import registry
from specbench.runner.methods import plan_methods

GOOD = '{"a": 1}\n'


def folder(tmp_path: Path, **files: str) -> Path:
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    return tmp_path


def test_what_is_whole_passes(tmp_path: Path) -> None:
    checks.whole(folder(tmp_path, run_json=GOOD, requests_jsonl=2 * GOOD + '{"a": '))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run_json", '{"a": '),
        ("run_json", ""),
        ("requests_jsonl", GOOD + '{"a": \n' + GOOD),
    ],
)
def test_what_is_half_written_is_named(name: str, content: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, check=wording):
        checks.whole(folder(tmp_path, **{name: content}))


def test_what_is_lost_or_changed_is_named(tmp_path: Path) -> None:
    before = checks.finished(folder(tmp_path, a_jsonl="1\n2\n3", b_jsonl="4\n"))
    assert before == {"a.jsonl": ["1\n", "2\n"], "b.jsonl": ["4\n"]}
    assert checks.kept(before, {**before, "a.jsonl": ["1\n", "2\n", "5\n"]}) == 3
    for after in (
        {"a.jsonl": ["1\n", "2\n"]},
        {**before, "a.jsonl": ["1\n"]},
        {**before, "a.jsonl": ["2\n", "1\n"]},
    ):
        with pytest.raises(AssertionError, check=wording):
            checks.kept(before, after)


def test_an_end_that_says_nothing_fails() -> None:
    checks.said(Ended(0, "", "", 1.0), {0})
    checks.said(Ended(137, "", "", 1.0), {0, 137})
    checks.said(Ended(6, "a note\nerror: method 'x' failed\n", "", 1.0), {6}, "method 'x'")
    for ended, what in (
        (Ended(1, "error: x", "", 1.0), ""),
        (Ended(0, "Traceback (most recent call last):\n", "", 1.0), ""),
        (Ended(0, "Exception ignored in: <x>", "", 1.0), ""),
        (Ended(3, "it was no good", "", 1.0), ""),
        (Ended(6, "error: something", "", 1.0), "method 'x'"),
    ):
        with pytest.raises(AssertionError):
            checks.said(ended, {0, 3, 6}, what)


@pytest.mark.parametrize("way", [way for way, _ in guests.WAYS])
def test_every_guest_is_a_method_until_it_decodes(way: str, tmp_path: Path) -> None:
    guests.install(tmp_path, way)
    with processes.visible(tmp_path):
        assert registry.broken("method") == {}
        assert plan_methods(["chaos"], [])[1].max_rows == 2


def test_the_five_commands_are_those_that_work_for_long(tmp_path: Path) -> None:
    assert set(commands(tmp_path / "p.jsonl")) == {"run", "sweep", "score", "judge", "train"}


@pytest.mark.slow
@pytest.mark.parametrize("trial", ["SIGTERM run", "guest ctypes.string_at(0)"])
def test_a_trial(trial: str) -> None:
    """Of whichever guests are drawn by this seed the crash is one."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run.py"), "--seed", "13", "--only", trial],
        capture_output=True, text=True, timeout=900, env={**os.environ}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
