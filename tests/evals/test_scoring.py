from __future__ import annotations

import json
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

from specbench.common import options as opt
from specbench.common import registry
from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import Verdict, launch, scoring
from specbench.evals.__main__ import main
from specbench.evals.scoring import score_run
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


def test_an_option_of_another_tasks_own_that_is_called_chain_splits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(opt.Options):
        chain: str = opt.option("long", help="of another kind")

    class Whole:
        def __init__(self, options: Own, data_dir: Path | None) -> None:
            self.options, self.versions, self.isolation = options, dict[str, str](), list[str]()

        def score(self, prompt_id: str, text: str) -> Verdict:
            return Verdict(prompt_id == ADD, "pass")

    card = registry.task("humaneval")
    monkeypatch.setattr(type(card), "load", lambda self: SimpleNamespace(Task=Whole, Options=Own))
    run = folder(tmp_path / "run", [RIGHT], options={"chain": "long"})
    score_run(run)
    assert [row["passed"] for row in verdicts(run)] == [True]


def test_scoring_again_replaces_the_verdicts(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [WRONG, WRONG])
    score_run(run)
    folder(run, [RIGHT])
    score_run(run)
    assert [row["passed"] for row in verdicts(run)] == [True]


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
        (lambda run: (run / "run.json").write_text("[]"), "damaged"),
        (lambda run: (run / "run.json").write_text('{"task": {"name": "humaneval"}}'), "damaged"),
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


def test_the_command_also_by_the_name_that_older_runs_print(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [RIGHT, WRONG])
    done = command(run, "--workers", "1", "--progress")
    assert (done.returncode, done.stdout) == (0, f"{run / 'verdicts.jsonl'}\n")
    assert [json.loads(line) for line in done.stderr.splitlines()] == [{"done": i, "total": 2} for i in range(3)]
    (run / "verdicts.jsonl").unlink()
    done = command(run, module="specbench.scoring")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run / 'verdicts.jsonl'}\n", "")
    assert [verdict["passed"] for verdict in verdicts(run)] == [True, False]


def test_its_errors_are_one_line_with_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert wording(captured.err)
    for wrong in (["x", "--workers", "0"], ["x", "--worker-count", "1"], []):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2


def test_scoring_never_imports_torch(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [RIGHT])
    code = (
        "import sys\nfrom specbench.evals.__main__ import main\ncode = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\nsys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True, capture_output=True, timeout=60)
    assert verdicts(run)[0]["passed"]


def test_ctrl_c_ends_it_soon_and_keeps_the_older_verdicts(tmp_path: Path) -> None:
    sleeper = "    import time\n    time.sleep(60)\n    # {}"
    run = folder(tmp_path / "run", [RIGHT, *(sleeper.format(i) for i in range(20))])
    (run / "verdicts.jsonl").write_text("older\n")
    arguments = [sys.executable, "-m", "specbench.evals", str(run), "--workers", "2", "--progress"]
    # Where a shell runs the tests in its background, Ctrl-C is ignored, and what ignores it is passed on to children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    while json.loads(process.stderr.readline())["done"] < 1:
        pass
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert time.monotonic() - start < 8  # those that run would have 10 s each, and there are eighteen more
    assert "interrupted" in process.stderr.read()
    process.stderr.close()
    assert (run / "verdicts.jsonl").read_text() == "older\n"


def test_progress_is_said_at_the_start_and_then_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    said: list[str] = []
    told = launch.Tenths(said.append, seconds=3.0)
    for done in range(0, 81, 8):
        told(done, 80)
    assert said == ["scoring answers, 0 of 80"], "all in a moment"
    now[0] += 3.0
    told(40, 80)
    told(41, 80)
    now[0] += 9.0
    told(43, 80)  # the same tenth
    told(80, 80)
    assert said[1:] == ["scoring answers, 40 of 80", "scoring answers, 80 of 80"]
