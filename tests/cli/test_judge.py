"""``specbench judge`` from the command line: local judges, endpoints that fail, FastChat's files, and the tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import judged_runs
import pytest
from chat_server import Server, completion, replies, says, serving

from specbench.evals import data
from specbench.evals.judge import endpoint
from specbench.evals.judge.prompts import JudgePrompts
from specbench.results.folder import RunFolder
from specbench.results.judgments import JUDGMENTS, read_judgments
from specbench.tasks.mt_bench.task import Options, Task

TEXTS: judged_runs.Texts = {
    "ar": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "jacobi": {"81": ["A travel blog.", "Aloha."], "111": ["12", "13"]},
    "lossy": {"81": ["A blog.", "Aloha."], "111": ["12", "14"]},
}
DISTINCT, ALL = 4 + 1 + 2, 12
LOCAL = ("--judge", "config:tiny", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _quick(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    monkeypatch.setattr(endpoint, "_PAUSE_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return judged_runs.folder(tmp_path / "runs", TEXTS)


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


# ---------------------------------------------------------------------------------------------------------- an endpoint


def test_scores_by_method_and_category_with_their_counts(cli: Any, folder: Path, server: Server) -> None:
    def by_length(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        user = body["messages"][1]["content"]
        says("[[3]]" if "A blog." in user else "no rating" if "\n14\n" in user else "[[8]]")(handler, body)

    server.answer = by_length
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url)
    assert said.code == 0, said.err
    assert len(server.asked) == DISTINCT
    assert table(said.out) == {
        "score": ["ar", "jacobi", "lossy"],
        "writing": ["8.00 (2)", "8.00 (2)", "3.00 (2)"],
        "math": ["8.00 (2)", "8.00 (2)", "8.00 (1/2)"],
        "turn 1": ["8.00 (2)", "8.00 (2)", "5.50 (2)"],
        "turn 2": ["8.00 (2)", "8.00 (2)", "3.00 (1/2)"],
        "all": ["8.00 (4)", "8.00 (4)", "4.67 (3/4)"],
    }
    assert f"by gpt-4 (at {server.url.split('/')[2]})" in said.out
    assert "judging answers, 12 of 12" in said.err


@pytest.mark.parametrize("columns", [80, 140])
def test_show_says_not_judged_until_there_are_judgments(cli: Any, folder: Path, server: Server, columns: int) -> None:
    before = cli("show", folder, columns=columns)
    assert "Answers are not judged; specbench judge RUN --judge MODEL rates them." in before.out
    assert "score" not in before.out
    assert cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url).code == 0
    after = cli("show", folder, columns=columns)
    assert "not judged" not in after.out
    assert table(after.out)["all"] == ["7.00 (4)"] * 3
    assert max(map(len, after.out.splitlines())) <= columns
    shown = json.loads(cli("show", folder, "--json").out)
    assert shown["judged"][0]["methods"]["lossy"]["score"] == 7
    assert shown["judged"][0]["judge"]["id"] == "gpt-4"


def test_judged_by_nobody_there_is_no_score_in_json_either(cli: Any, folder: Path) -> None:
    assert "judged" not in json.loads(cli("show", folder, "--json").out)


def test_json_has_the_scores_and_nothing_else_is_on_stdout(cli: Any, folder: Path, server: Server) -> None:
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--json")
    assert json.loads(said.out)["judged"][0]["methods"]["ar"]["rated"] == 4


@pytest.mark.parametrize("failure", ["rubbish", "error", "death"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_endpoint_that_fails_midway_loses_nothing_and_the_same_command_goes_on(
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
    command = ("judge", folder, "--judge", "gpt-4", "--base-url", server.url)
    said = cli(*command)
    assert said.code == 3
    assert "what is judged already is kept, repeat the command to go on" in said.error
    fresh = [judgment for judgment in read_judgments(folder) if not judgment.same_as]
    assert len(fresh) == after
    server.answer = says("[[6]]")
    again = cli(*command)
    assert again.code == 0
    assert len(server.asked) == after + 3 + (DISTINCT - after)
    assert kept(folder) == ALL
    assert {judgment.rating for judgment in read_judgments(folder)} == ({7, 6} if after else {6})


def test_an_endpoint_that_is_too_slow_is_given_up_with_what_is_done_kept(
    cli: Any, folder: Path, server: Server
) -> None:
    def slow(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if len(server.asked) > 2:
            server.over.wait(10)
        says("[[7]]")(handler, body)

    server.answer = slow
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--timeout", 0.3)
    assert said.code == 3
    assert "no answer within 0.3 s" in said.error
    assert kept(folder) == 2


def test_ctrl_c_keeps_what_is_judged(cli: Any, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = endpoint.Endpoint.ask

    def interrupted(self: endpoint.Endpoint, prompt: Any) -> str:
        if len(server.asked) == 3:
            raise KeyboardInterrupt
        return ask(self, prompt)

    command = ("judge", folder, "--judge", "gpt-4", "--base-url", server.url)
    with monkeypatch.context() as patched:
        patched.setattr(endpoint.Endpoint, "ask", interrupted)
        said = cli(*command)
    assert (said.code, kept(folder)) == (130, 3)
    assert cli(*command).code == 0
    assert len(server.asked) == DISTINCT


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    cli: Any, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret\n")
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--api-key-env", "JUDGE_KEY")
    assert said.code == 0
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in said.out + said.err + (folder / JUDGMENTS).read_text()


@pytest.mark.parametrize("code", [200, 400, 401, 500])
def test_a_key_that_the_endpoint_echoes_is_kept_nowhere(
    cli: Any, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    key = "sk-Xy12/34+56=="
    echo = f"{key} Bearer {key} {quote(key, safe='')}"
    body = completion(f"{echo} [[7]]") if code == 200 else json.dumps({"error": {"message": echo}}).encode()
    server.answer = replies(code, body, X_Key=key)
    monkeypatch.setenv("JUDGE_KEY", key)
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--api-key-env", "JUDGE_KEY")
    assert said.code == (0 if code == 200 else 3 if code == 500 else 2)
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    written = "".join(path.read_text() for path in folder.iterdir() if path.is_file())
    assert "[key]" in (said.err if code in (401, 500) else written)
    for part in ("Xy12", "34+56", "34%2B"):
        assert part not in said.out + said.err + written


@pytest.mark.parametrize("key", [" \t", "sk-sec\nret", "sk-sécret", "sek"])
def test_what_is_no_key_is_refused_before_a_question_and_not_shown(
    cli: Any, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--api-key-env", "JUDGE_KEY")
    assert (said.code, said.out, server.asked) == (2, "", [])
    assert "environment variable JUDGE_KEY" in said.error
    assert not re.search(r"\bsek\b|sk-|\bret\b|cret", said.err)


def test_a_key_given_for_the_name_of_its_variable_is_not_shown(cli: Any, folder: Path, server: Server) -> None:
    said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url, "--api-key-env", "sk-secret")
    assert said.code == 2
    assert "what --api-key-env names is not set" in said.error
    assert "secret" not in said.out + said.err


# ---------------------------------------------------------------------------------------------------------- local judge


def test_a_local_model_judges_what_a_run_wrote(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    asked = ("--task", "mt-bench", "--limit", 1, "--first", "--max-new-tokens", 8)
    run = cli("run", "--model", "config:tiny", *asked, "--out", out)
    assert run.code == 0, run.err
    (folder,) = out.iterdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = cli("judge", folder, *LOCAL)
    assert said.code == 0, said.err
    found = read_judgments(folder)
    assert [(j.request, j.same_as) for j in found] == [
        ("ar|81|0", None),
        ("ar|81|0|2", None),
        ("jacobi|81|0", "ar|81|0"),
        ("jacobi|81|0|2", "ar|81|0|2"),
    ]
    assert all(
        (j.rating, j.judge.id, j.judge.kind, j.judge.max_tokens) == (None, "config:tiny", "local", 8) for j in found
    )
    assert found[0].judge.fingerprint
    assert table(said.out)["all"] == ["– (0/2)"] * 2
    # Nothing of the run is touched, no lock is left, and asking again asks nothing.
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != JUDGMENTS} == before
    lines = kept(folder)
    assert cli("judge", folder, *LOCAL).code == 0
    assert kept(folder) == lines


def test_an_answer_too_long_for_a_local_judge_is_noted_and_not_rated(cli: Any, tmp_path: Path) -> None:
    long = {"ar": {"81": ["word " * 3000, "Aloha."], "111": ["12", "13"]}}
    folder = judged_runs.folder(tmp_path, long)
    assert cli("judge", folder, *LOCAL).code == 0
    errors = {judgment.request: judgment.error for judgment in read_judgments(folder) if judgment.error}
    assert errors.keys() == {"ar|81|0", "ar|81|0|2"}
    assert all("do not fit in its 8192" in str(error) for error in errors.values())


# ----------------------------------------------------------------------------------------------------- FastChat's files


def test_export_and_import_of_fastchats_files(cli: Any, tmp_path: Path, folder: Path) -> None:
    said = cli("judge", folder, "--export", tmp_path / "out")
    assert said.code == 0, said.err
    files = sorted((tmp_path / "out" / "model_answer").iterdir())
    assert [file.name for file in files] == ["m-ar.jsonl", "m-jacobi.jsonl", "m-lossy.jsonl"]
    questions, prompts = Task(Options()).questions(), JudgePrompts()
    rows = []
    for file in files:
        for row in map(json.loads, file.read_text().splitlines()):
            for turn in (1, 2):
                made = prompts.render(questions[str(row["question_id"])], row["choices"][0]["turns"][:turn])
                rows.append(
                    {"question_id": row["question_id"], "model": row["model_id"], "judge": ["gpt-4", made.name],
                     "user_prompt": made.user, "judgment": "[[9]]", "score": 9, "turn": turn, "tstamp": 1.0}
                )  # fmt: skip
    judged = tmp_path / "gpt-4_single.jsonl"
    judged.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = cli("judge", folder, "--import", judged)
    assert said.code == 0, said.err
    assert "12 judgments taken" in said.err
    assert table(said.out)["all"] == ["9.00 (4)"] * 3
    assert "by gpt-4 (imported)" in said.out


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        ("{run}", 2, "nothing to do; name a judge (--judge), or give --export DIR or --import FILE"),
        ("{run} --base-url http://localhost/v1", 2, "--base-url and --api-key-env go with --judge"),
        ("{run} --judge m --api-key-env HOME", 2, "--api-key-env goes with --base-url"),
        ("{run} --judge m --base-url http://h/v1 --api-key-env NO_SUCH", 2, "environment variable NO_SUCH is not set"),
        ("{run} --judge m --base-url localhost:1", 2, "--base-url localhost:1 is no web address"),
        (
            "{run} --judge m --base-url http://h/v1 --dtype bf16",
            2,
            "--dtype, --device, --revision and --trust-remote-code",
        ),
        ("{run} --judge m --timeout 5", 2, "--timeout goes with --base-url"),
        (
            "{run} --judge smolm2",
            2,
            "unknown model 'smolm2'; did you mean smollm2-135m or smollm2-135m-jf or smollm2-135m-msn?",
        ),
        ("{run} --judge m --import nowhere", 2, "file 'nowhere' does not exist"),
        ("{run} --judge config:tiny --data-dir {empty}", 2, "has no file mt_bench_question.jsonl"),
        ("{empty} --judge config:tiny", 2, "is not a run folder"),
        ("nowhere --judge config:tiny", 2, "is not a run folder"),
        ("{other} --judge config:tiny", 2, "task 'humaneval' is not rated by a judge; those that are: mt-bench"),
        ("{run} --judge m --base-url http://127.0.0.1:9/v1", 3, "gave no answer in 3 tries (connection refused)"),
    ],
)
def test_a_mistake_is_one_line(cli: Any, tmp_path: Path, folder: Path, argv: str, code: int, expected: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    other = judged_runs.folder(tmp_path / "others", TEXTS)
    run = json.loads((other / "run.json").read_text())
    run["task"] |= {"name": "humaneval", "options": {}}
    (other / "run.json").write_text(json.dumps(run))
    said = cli("judge", *argv.format(run=folder, empty=empty, other=other).split())
    assert (said.code, said.out) == (code, "")
    assert expected in said.error
    assert kept(folder) == 0


def test_two_judges_at_once_do_not_write_into_each_other(cli: Any, folder: Path, server: Server) -> None:
    with RunFolder.reopen(folder):
        said = cli("judge", folder, "--judge", "gpt-4", "--base-url", server.url)
    assert said.code == 3
    assert "is in use by another specbench process" in said.error
    assert server.asked == []
