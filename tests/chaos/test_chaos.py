"""The chaos checks fail for lost or incomplete files and missing errors; one real trial (slow)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes

from chaos import checks, plugins
from chaos.commands import Ended, commands
from specbench.common import registry
from specbench.planning.methods import plan_methods

GOOD = '{"a": 1}\n'


def folder(tmp_path: Path, **files: str) -> Path:
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    return tmp_path


def test_damage_and_loss_are_found(tmp_path: Path) -> None:
    checks.whole(folder(tmp_path, run_json=GOOD, requests_jsonl=2 * GOOD + '{"a": '))
    before = checks.finished(tmp_path)
    assert checks.kept(before, before) == 2
    for name, content in (("run.json", '{"a": '), ("requests.jsonl", GOOD + '{"a": \n' + GOOD)):
        (tmp_path / name).write_text(content)
        with pytest.raises(AssertionError, match=name):
            checks.whole(tmp_path)
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "requests.jsonl").write_text("")
    with pytest.raises(AssertionError, match=r"requests\.jsonl"):
        checks.kept(before, checks.finished(tmp_path))


def test_an_end_without_a_sentence_fails() -> None:
    checks.ended_with(Ended(137, "", "", 1.0), {0, 137})
    checks.ended_with(Ended(6, "a note\nerror: method 'x' failed\n", "", 1.0), {6}, "method 'x'")
    for code, err in ((1, "error: x"), (0, "Traceback (most recent call last):\n"), (3, "it was no good")):
        with pytest.raises(AssertionError):
            checks.ended_with(Ended(code, err, "", 1.0), {0, 3, 6}, "")


@pytest.mark.parametrize("way", [way for way, _ in plugins.WAYS])
def test_every_guest_is_a_method_until_it_decodes(way: str, tmp_path: Path) -> None:
    plugins.install(tmp_path, way)
    with processes.visible(tmp_path):
        assert registry.broken("method") == {}
        assert plan_methods(["chaos"], [])[1].max_rows == 2


def test_the_five_commands_are_those_that_work_for_long(tmp_path: Path) -> None:
    assert set(commands(tmp_path / "p.jsonl")) == {"run", "sweep", "score", "judge", "train"}


@pytest.mark.slow
@pytest.mark.parametrize("trial", ["SIGTERM run", "plugin ctypes.string_at(0)"])
def test_a_trial(trial: str) -> None:
    """This seed selects the crashing plug-in among others."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run.py"), "--seed", "13", "--only", trial],
        capture_output=True, text=True, timeout=900, env={**os.environ}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
