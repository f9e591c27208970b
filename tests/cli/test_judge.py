"""``specbench score --judge``: local judges, endpoints that fail, FastChat's files, and the tables."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support import engines
from support.engines import Server, completion, replies, says, serving
from support.wording import wording

from specbench.evals import data
from specbench.evals.judge import endpoint
from specbench.results.judgments import JUDGMENTS, read_judgments

TEXTS: engines.Texts = {
    "ar": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "jacobi": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "lossy": {"81": ["A blog.", "Aloha."], "111": ["12", "14"]},
}
DISTINCT, ALL = 4 + 1 + 2, 12
GPT = ("--judge", "gpt-4", "--base-url")
LOCAL = ("--judge", "config:tiny", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _quick(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    monkeypatch.setattr(endpoint, "_PAUSE_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return engines.folder(tmp_path / "runs", TEXTS)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def kept(folder: Path) -> int:
    path = folder / JUDGMENTS
    return len(path.read_text().splitlines()) if path.exists() else 0


def table(text: str) -> dict[str, list[str]]:
    """First cell -> other cells of the table of scores."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("score"))
    end = next(at for at, line in enumerate(lines) if line.startswith("Mean rating"))
    rows = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in (lines[start], *lines[start + 2 : end])
    ]
    return {row[0]: row[1:] for row in rows}


def test_scores_by_method_and_category_with_their_counts(cli: Any, folder: Path, server: Server) -> None:
    def by_length(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        user = body["messages"][1]["content"]
        says("[[3]]" if "A blog." in user else "no rating" if "\n14\n" in user else "[[8]]")(handler, body)

    server.answer = by_length
    result = cli.ok("score", folder, *GPT, server.url)
    assert len(server.asked) == DISTINCT
    assert table(result.out) == {
        "score": ["ar", "jacobi", "lossy"], "writing": ["8.00 (2)", "8.00 (2)", "3.00 (2)"],
        "math": ["8.00 (2)", "8.00 (2)", "8.00 (1/2)"], "turn 1": ["8.00 (2)", "8.00 (2)", "5.50 (2)"],
        "turn 2": ["8.00 (2)", "8.00 (2)", "3.00 (1/2)"], "all": ["8.00 (4)", "8.00 (4)", "4.67 (3/4)"],
    }  # fmt: skip
    assert f"{server.url.split('/')[2]}" in result.out
    assert wording(result.err)


@pytest.mark.parametrize(("failure", "after"), [("rubbish", 0), ("error", 1), ("death", 5), ("rubbish", 5)])
def test_where_an_endpoint_fails_the_same_command_goes_on(
    cli: Any, folder: Path, server: Server, failure: str, after: int
) -> None:
    def fails(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if len(server.asked) <= after:
            says("[[7]]")(handler, body)
        elif failure == "rubbish":
            replies(200, b"<html>")(handler, body)
        elif failure == "error":
            replies(500, b"")(handler, body)
        else:
            handler.connection.close()

    server.answer = fails
    command = ("score", folder, *GPT, server.url)
    assert wording(cli.refused(3, *command))
    fresh = [judgment for judgment in read_judgments(folder) if not judgment.same_as]
    assert len(fresh) == after
    server.answer = says("[[6]]")
    cli.ok(*command)
    assert len(server.asked) == after + 3 + (DISTINCT - after)
    assert kept(folder) == ALL
    assert {judgment.rating for judgment in read_judgments(folder)} == ({7, 6} if after else {6})


@pytest.mark.parametrize(("code", "exit_code"), [(200, 0), (400, 2), (401, 2), (500, 3)])
def test_the_key_of_the_environment_is_kept_nowhere_though_the_endpoint_echoes_it(
    cli: Any, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int
) -> None:
    key = "sk-Xy12/34+56=="
    echo = f"{key} Bearer {key}"
    body = completion(f"{echo} [[7]]") if code == 200 else json.dumps({"error": {"message": echo}}).encode()
    server.answer = replies(code, body, X_Key=key)
    monkeypatch.setenv("JUDGE_KEY", f"{key}\n")
    result = cli("score", folder, *GPT, server.url, "--api-key-env", "JUDGE_KEY")
    assert result.code == exit_code
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    written = "".join(path.read_text() for path in folder.iterdir() if path.is_file())
    assert "[key]" in (result.err if code in (401, 500) else written)
    for part in ("Xy12", "34+56"):
        assert part not in result.out + result.err + written


def test_a_local_model_judges_what_a_run_wrote(cli: Any, tmp_path: Path) -> None:
    asked = ("--task", "mt-bench", "--limit", 1, "--first", "--max-new-tokens", 8)
    folder = cli.made(tmp_path / "runs", "run", "--model", "config:tiny", *asked)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = cli.ok("score", folder, *LOCAL)
    found = read_judgments(folder)
    turns = ("81|0", "81|0|2")
    assert [(j.request, j.same_as) for j in found] == [
        *((f"ar|{turn}", None) for turn in turns), *((f"jacobi|{turn}", f"ar|{turn}") for turn in turns),
    ]  # fmt: skip
    reported = {(j.rating, j.judge.id, j.judge.kind, j.judge.max_tokens) for j in found}
    assert reported == {(None, "config:tiny", "local", 8)}
    assert found[0].judge.fingerprint
    assert table(result.out)["all"] == ["– (0/2)"] * 2
    # Nothing of the run is touched, no lock is left, and asking again asks nothing.
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != JUDGMENTS} == before
    lines = kept(folder)
    cli.ok("score", folder, *LOCAL)
    assert kept(folder) == lines


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ("{run} --judge m --api-key-env HOME", 2),
        ("{run} --judge m --base-url http://h/v1 --api-key-env NO_SUCH", 2),
        ("{run} --judge m --base-url localhost:1", 2),
        ("{run} --judge m --base-url http://h/v1 --dtype bf16", 2),
        ("{run} --judge m --timeout 5", 2),
        ("{run} --judge m --base-url http://h --timeout 1e9", 2),
        ("{run} --judge m --judge-workers 2", 2),
        ("{run} --judge m --base-url http://h --judge-workers 65", 2),
        ("{run} --judge config:tiny --data-dir {empty}", 2),
        ("{empty} --judge config:tiny", 2),
        ("{other} --judge config:tiny", 2),
        ("{run} --judge m --base-url http://127.0.0.1:9/v1", 3),
    ],
)
def test_a_mistake_is_one_line(cli: Any, tmp_path: Path, folder: Path, argv: str, code: int) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    other = engines.folder(tmp_path / "others", TEXTS)
    run = json.loads((other / "run.json").read_text())
    run["task"] |= {"name": "humaneval", "options": {}}
    (other / "run.json").write_text(json.dumps(run))
    assert wording(cli.refused(code, "score", *argv.format(run=folder, empty=empty, other=other).split()))
    assert kept(folder) == 0


def test_ctrl_c_with_several_workers_keeps_what_has_come(cli: Any, folder: Path, server: Server) -> None:
    main = threading.main_thread().ident
    assert main is not None
    once = threading.Lock()  # those that hang answer when the server closes: a second Ctrl-C would meet the next test

    def hangs(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if "A travel blog." in body["messages"][1]["content"]:  # the first question, and the second
            server.over.wait(20)
        says("[[7]]")(handler, body)
        if any("\n14\n" in asked["messages"][1]["content"] for asked in server.asked) and once.acquire(blocking=False):
            threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()

    server.answer = hangs
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have us ignore it
    begun = time.monotonic()
    try:
        result = cli("score", folder, *GPT, server.url, "--judge-workers", 8)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.code == 130
    assert time.monotonic() - begun < 10
    assert {each.request for each in read_judgments(folder)} == {
        "ar|111|0",
        "ar|111|0|2",
        "lossy|81|0",
        "lossy|81|0|2",
        "lossy|111|0|2",
    }
    server.answer = says("[[7]]")
    asked = len(server.asked)
    assert cli("score", folder, *GPT, server.url, "--judge-workers", 8).code == 0
    assert (len(server.asked) - asked, kept(folder)) == (2, ALL)
