from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals.grading import scoring
from specbench.evals.grading.scoring import score_run
from specbench.results.schema import SCHEMA_VERSION
from specbench.tasks.humaneval.task import Task

ADD = "HumanEval/53"
RIGHT, WRONG = "    return x + y", "    return x - y"


def folder(path: Path, answers: list[str], style: str = "completion", tail: str = "", **task: Any) -> Path:
    path.mkdir(exist_ok=True)
    made = {"name": "humaneval", "version": 1, "options": {"style": style, "tests": "base"}} | task
    (path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "task": made}))
    rows = [
        {"request_id": f"ar|{ADD}|{i}", "method": "ar", "prompt_id": ADD, "text": text, "output_tokens": 7}
        for i, text in enumerate(answers)
    ]
    (path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def verdicts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "verdicts.jsonl").read_text().splitlines()]


def test_every_finished_request_gets_a_line(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [WRONG, RIGHT, ""], tail='{"request_id": "torn", "prompt_id": "HumanEv')
    assert score_run(run) == run / "verdicts.jsonl"
    rows = verdicts(run)
    assert [row["request"] for row in rows] == [f"ar|HumanEval/53|{i}" for i in range(3)]
    assert [(row["passed"], row["reason"]) for row in rows] == [(False, "fail"), (True, "pass"), (False, "empty")]
    assert set(rows[0]) == {"request", "answer", "passed", "reason", "detail", "also", "extracted", "scorer"}
    assert [bool(row["extracted"]) for row in rows] == [True, True, False]
    for row in rows:
        assert row["scorer"]["task"] == "humaneval"
        assert row["scorer"]["task_version"] == registry.task("humaneval").info["version"]
        assert any("seccomp" in line for line in row["scorer"]["isolation"])
    assert sorted(os.listdir(run)) == ["requests.jsonl", "run.json", "verdicts.jsonl"]
    assert (run / "verdicts.jsonl").stat().st_mode & 0o777 == 0o644


def test_equal_answers_are_scored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    real = Task.score

    def counted(self: Task, prompt_id: str, text: str) -> Any:
        seen.append((prompt_id, text))
        return real(self, prompt_id, text)

    monkeypatch.setattr(Task, "score", counted)
    steps: list[tuple[int, int]] = []
    run = folder(tmp_path / "run", [RIGHT, WRONG, RIGHT, RIGHT])
    score_run(run, workers=1, progress=lambda done, total: steps.append((done, total)))
    assert sorted(seen) == [(ADD, RIGHT), (ADD, WRONG)]
    assert [row["passed"] for row in verdicts(run)] == [True, False, True, True]
    assert steps == [(0, 2), (1, 2), (2, 2)]


def test_chat_runs_are_scored_as_chat_and_one_without_requests_gives_an_empty_file(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", ["def add(x, y):\n    return x + y"], style="chat")
    score_run(run)
    assert verdicts(run)[0]["passed"]
    score_run(folder(tmp_path / "none", []))
    assert verdicts(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "not a run folder"),
        (lambda run: (run / "run.json").write_text("{"), "damaged"),
        (lambda run: folder(run, [], name="humanevil"), "did you mean humaneval"),
        (lambda run: folder(run, [], options={"stile": "chat"}), "did you mean style"),
        (lambda run: folder(run, [RIGHT], style="auto"), "style"),
        (lambda run: None, "no file"),  # in the data folder, which is passed on
        (lambda run: (run / "requests.jsonl").write_text("{\n"), "line 1"),
        (lambda run: (run / "requests.jsonl").write_text('{"request_id": "a", "prompt_id": "b"}\n'), "line 1.*'text'"),
    ],
)
def test_a_run_that_cannot_be_scored_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    run = folder(tmp_path / "run", [RIGHT])
    (run / "verdicts.jsonl").write_text("older\n")
    damage(run)
    with pytest.raises(UsageError, check=wording):
        score_run(run, data_dir=tmp_path if message == "no file" else None)
    assert (run / "verdicts.jsonl").read_text() == "older\n"


def test_a_failed_write_keeps_the_older_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path / "run", [RIGHT])
    (run / "verdicts.jsonl").write_text("older\n")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scoring.os, "fsync", full)
    with pytest.raises(EnvironmentRefused, check=wording):
        score_run(run)
    assert (run / "verdicts.jsonl").read_text() == "older\n"
    assert sorted(os.listdir(run)) == ["requests.jsonl", "run.json", "verdicts.jsonl"]


def command(*arguments: str | Path, module: str = "specbench.evals") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_scoring_never_imports_torch(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [RIGHT])
    code = (
        "import sys\nfrom specbench.evals.__main__ import main\ncode = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\nsys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True, capture_output=True, timeout=60)
    assert verdicts(run)[0]["passed"]
