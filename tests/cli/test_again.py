"""The same command again: what is finished is shown, not decoded, unless ``--again`` or something else says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.common import registry
from specbench.hardware import environment
from specbench.results import RequestRecord
from specbench.runner.run_progress import RunProgress
from specbench.runner.session import Session

TINY = ("run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 4)


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Of a task without verdicts: no process that scores."""
    file = tmp_path_factory.mktemp("data") / "mine.jsonl"
    file.write_text('{"prompt": "Once upon a time"}\n{"prompt": "Twice upon a time"}\n')
    return (*TINY, "--task", "prompts", "--data-file", file)


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warm-ups since: nothing is decoded without one."""
    seen: list[str] = []
    warm_up = Session.warm_up

    def counted(self: Session, *args: Any, **kwargs: Any) -> None:
        seen.append("warm-up")
        warm_up(self, *args, **kwargs)

    monkeypatch.setattr(Session, "warm_up", counted)
    return seen


def contents(out: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("methods", ["ar,jacobi", "ar,ar"])
def test_a_finished_run_is_shown_and_not_decoded(
    cli: Any, command: Any, tmp_path: Path, warmed: Any, methods: str
) -> None:
    command = (*command, "--method", methods, "--repeats", 2, "--out", tmp_path)
    first = cli.ok(*command)
    assert warmed == ["warm-up"]
    (folder,) = tmp_path.iterdir()
    before = contents(tmp_path)
    second = cli.ok(*command)
    assert second.out == first.out
    assert second.err.splitlines() == ["loading config:tiny …", f"done already in {folder}; --again repeats"]
    assert (contents(tmp_path), warmed) == (before, ["warm-up"])
    third, fourth = (cli.ok(*command, *more, "--json").out for more in ((), ("--again",)))
    assert [[each["task"] for each in json.loads(text)] for text in (third, fourth)] == [["prompts"]] * 2
    assert [json.loads(text)[0]["folder"] == str(folder) for text in (third, fourth)] == [True, False]


def test_again_makes_another_run(cli: Any, command: Any, tmp_path: Path, warmed: list[str]) -> None:
    cli.ok(*command, "--out", tmp_path)
    before = contents(tmp_path)
    result = cli.ok(*command, "--again", "--out", tmp_path)
    assert (len(warmed), len([*tmp_path.glob("*/DONE")])) == (2, 2)
    assert contents(tmp_path).items() > before.items(), "a finished run is never touched again"
    assert "done already" not in result.err
    newest = max(tmp_path.iterdir(), key=lambda path: (len(path.name), path.name))
    assert f"{newest}" in cli(*command, "--out", tmp_path).err


def test_another_command_or_another_out_is_another_run(cli: Any, command: Any, tmp_path: Path) -> None:
    assert cli(*command, "--out", tmp_path / "a").code == 0
    for more in (("--seed", 1, "--out", tmp_path / "a"), ("--out", tmp_path / "b")):
        result = cli(*command, *more)
        assert (result.code, "done already" in result.err) == (0, False)
    assert (len([*tmp_path.glob("a/*")]), len([*tmp_path.glob("b/*")])) == (2, 1)


def test_a_broken_off_repetition_goes_on_first(
    cli: Any, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: RunProgress, record: RequestRecord) -> None:
        raise KeyboardInterrupt

    assert cli(*command, "--out", tmp_path).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "request", interrupt)
        assert cli(*command, "--again", "--out", tmp_path).code == 130
    (half,) = (path for path in tmp_path.iterdir() if not (path / "DONE").exists())
    result = cli(*command, "--out", tmp_path)
    assert wording.sentences(result.err)
    assert "done already" not in result.err
    assert (half / "DONE").exists()


def test_uncommitted_changes_and_a_foreign_method(
    cli: Any, command: Any, tmp_path: Path, monkeypatch: Any, liar: str
) -> None:
    assert registry.method(liar).origin != registry.OWN
    for dirty, method in ((True, "ar"), (False, liar)):
        monkeypatch.setattr(environment, "git_state", lambda root, dirty=dirty: ("c" * 40, dirty))
        for _ in range(2):
            assert "done already" not in cli.ok(*command, "--method", method, "--out", tmp_path / "out" / method).err
        assert len([*(tmp_path / "out" / method).iterdir()]) == 2


def test_verdicts_that_a_finished_run_was_without(cli: Any, tmp_path: Path, warmed: list[str]) -> None:
    """``--no-score`` decides nothing that is measured: without it the same run is judged, and not decoded again."""
    folder = cli.made(tmp_path, *TINY, "--method", "ar", "--no-score")
    before = runs.rows_on_disk(folder)["ar"]
    assert cli.made(tmp_path, *TINY, "--method", "ar") == folder
    after = runs.rows_on_disk(folder)["ar"]
    assert (before["accuracy"], after["accuracy"] is None) == (None, False)
    assert after["decode_tok_s"] == before["decode_tok_s"]
    assert warmed == ["warm-up"]
