"""Tasks whose prompts have turns, temperatures and categories, run and shown on dummy weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specbench.evals import data
from specbench.results.schema import RequestRecord
from specbench.runner.progress import RunProgress

TINY = ("--model", "config:tiny", "--max-new-tokens", 8)


@pytest.fixture(scope="module", autouse=True)
def _data(task_data: Path) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(data.DATA_DIR, str(task_data))
        yield


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user's own."""
    rows = [
        {"prompt": "Once upon a time", "category": "stories"},
        {"turns": ["Name a colour.", "And another.", "One more."], "id": "colours", "category": "talk/short"},
        {"messages": [{"role": "user", "content": "Hi"}], "category": "talk/long"},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def run(cli: Any, out: Path, *argv: object) -> tuple[Any, list[RequestRecord]]:
    said = cli("run", *TINY, "--out", out, *argv)
    assert said.code == 0, said.err
    return said, records(out)


def records(out: Path) -> list[RequestRecord]:
    (folder,) = out.iterdir()
    return [RequestRecord.model_validate_json(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def ids(found: list[RequestRecord]) -> dict[str, list[int]]:
    return {record.request_id: record.output_ids for record in found}


# ---------------------------------------------------------------------------------------------------------- the tables


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("task", ["mt-bench", "spec-bench", "prompts"])
def test_each_task_runs_with_two_methods_and_its_table_is_legible(
    cli: Any, tmp_path: Path, mine: Path, task: str, columns: int
) -> None:
    own = ("--data-file", mine) if task == "prompts" else ()
    out = tmp_path / "out"
    said = cli(
        "run", *TINY, "--task", task, *own, "--method", "jacobi,pld", "--limit", 2, "--first", "--out", out,
        columns=columns,
    )  # fmt: skip
    assert said.code == 0, said.err
    *lines, last = said.out.splitlines()
    assert last.startswith("run: ")
    assert max(map(len, lines)) <= columns
    assert "…" not in said.out
    header = next(line.split() for line in lines if line.startswith("method"))
    assert not {"pass@1", "accuracy"} & set(header)
    assert any(line.startswith("Answers are not judged") for line in lines)
    groups = lines[next(at for at, line in enumerate(lines) if line.startswith("group ")) :]
    shown = {"mt-bench": ["writing"], "spec-bench": ["mt_bench"], "prompts": ["stories", "talk", "overall"]}[task]
    assert [line.split()[0] for line in groups[2 : 2 + 2 * len(shown) : 2]] == shown
    assert [line.split()[-6] for line in groups[3 : 3 + 2 * len(shown) : 2]]


def test_only_what_a_judge_can_rate_names_the_command_that_does(cli: Any, tmp_path: Path, mine: Path) -> None:
    said, _ = run(cli, tmp_path / "a", "--task", "mt-bench", "--limit", 1)
    assert "Answers are not judged; specbench judge RUN --judge MODEL rates them." in said.out
    said, _ = run(cli, tmp_path / "b", "--task", "prompts", "--data-file", mine)
    assert "Answers are not judged.\n" in said.out


# ------------------------------------------------------------------------------------------------------------ the turns


def test_turn_two_is_what_the_same_conversation_as_one_prompt_gives(cli: Any, tmp_path: Path) -> None:
    _, talked = run(cli, tmp_path / "talk", "--task", "mt-bench", "--limit", 2, "--method", "jacobi,lookahead")
    from specbench.tasks.mt_bench.task import Options, Task

    prompts = {prompt.id: prompt for prompt in Task(Options(style="plain")).prompts(chat=False)}
    file, rows = tmp_path / "whole.jsonl", []
    first = {(r.method, r.prompt_id): r.text for r in talked if r.turn == 1}
    second = {(r.method, r.prompt_id): r for r in talked if r.turn == 2}
    assert len(second) == 3 * 2
    for (method, prompt), text in first.items():
        rows.append({"prompt": prompts[prompt].after([text]).text, "id": f"{method}/{prompt}"})
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    whole = tmp_path / "whole"
    _, asked = run(cli, whole, "--task", "prompts", "--data-file", file, "--method", "jacobi,lookahead")
    fresh = {record.prompt_id: record for record in asked if record.method == record.prompt_id.partition("/")[0]}
    for (method, prompt), record in second.items():
        twin = fresh[f"{method}/{prompt}"]
        assert (record.output_ids, record.prompt_tokens, record.output_tokens) == (
            twin.output_ids,
            twin.prompt_tokens,
            twin.output_tokens,
        )


def test_a_conversation_interrupted_after_any_turn_goes_on_as_if_it_had_not_been(
    cli: Any, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("--task", "prompts", "--data-file", mine, "--method", "jacobi", "--temperature", 0.7)
    _, unbroken = run(cli, tmp_path / "unbroken", *command)
    assert len(unbroken) == 2 * (1 + 3 + 1)

    def interrupt(self: RunProgress, record: RequestRecord) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "broken"
    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "request", interrupt)
        for done in range(1, len(unbroken) + 1):
            assert cli("run", *TINY, "--out", out, *command).code == 130
            assert len(records(out)) == done
    _, resumed = run(cli, out, *command)
    assert ids(resumed) == ids(unbroken)
    assert [r.prompt_tokens for r in resumed] == [r.prompt_tokens for r in unbroken]


def test_forced_history_asks_all_methods_the_same_and_own_history_does_not(cli: Any, tmp_path: Path, liar: str) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for history in ("own", "ar"):
        setting = f"mt-bench.history={history}"
        out = tmp_path / history
        command = ("--task", "mt-bench", "--limit", 2, "--first", "--method", liar)
        said, found = run(cli, out, *command, "--task-set", setting)
        first = {(r.method, r.prompt_id): r.text for r in found if r.turn == 1}
        assert first["ar", "81"] != first["liar", "81"]
        (folder,) = out.iterdir()
        rows[history] = json.loads((folder / "summary.json").read_text())["rows"][1]
        assert f"history {history}" in said.out
    # What was asked unlike things is not graded: a first turn that lies makes the second one incomparable.
    graded = {name: row["lossless"]["exact"] + row["lossless"]["lossy"] for name, row in rows.items()}
    assert graded == {"own": 2, "ar": 4}
    assert rows["ar"]["prompt_changed"] == 0


def test_each_question_is_sampled_at_its_own_temperature_in_one_run(cli: Any, tmp_path: Path) -> None:
    command = ("--task", "mt-bench", "--limit", 5, "--first", "--method", "jacobi", "--concurrency", 4)
    _, official = run(cli, tmp_path / "official", *command, "--task-set", "mt-bench.temperatures=official")
    _, warm = run(cli, tmp_path / "warm", *command, "--temperature", 0.7)
    _, greedy = run(cli, tmp_path / "greedy", *command)
    writing = {record.request_id for record in official if record.category in ("writing", "roleplay")}
    assert {record.category for record in official} == {"writing", "roleplay", "reasoning"}
    expected = {key: (ids(warm) if key in writing else ids(greedy))[key] for key in ids(official)}
    assert ids(official) == expected
    assert ids(warm) != ids(greedy)
    (folder,) = (tmp_path / "official").iterdir()
    graded = json.loads((folder / "summary.json").read_text())["rows"][1]["lossless"]
    assert (graded["verdict"], graded["exact"]) == ("exact", 10)


# ---------------------------------------------------------------------------------------------------------- --data-file


def test_the_record_names_the_file_without_its_folder_and_its_hash(cli: Any, tmp_path: Path, mine: Path) -> None:
    run(cli, tmp_path / "out", "--task", "prompts", "--data-file", mine)
    (folder,) = (tmp_path / "out").iterdir()
    text = (folder / "run.json").read_text()
    assert str(mine.parent) not in text
    options = json.loads(text)["task"]["options"]
    assert (options["file"], options["sha256"]) == ("mine.jsonl", hashlib.sha256(mine.read_bytes()).hexdigest())


def test_check_lossless_takes_the_file_too_and_names_the_turn(cli: Any, mine: Path, liar: str) -> None:
    command = ("check-lossless", *TINY, "--task", "prompts", "--data-file", mine, "--temperatures", "0")
    said = cli(*command, "--method", "jacobi", "--json")
    assert (said.code, json.loads(said.out)["rows"][0]["exact"]) == (0, 5)
    said = cli(*command, "--method", liar, "--task-set", "prompts.history=ar")
    assert said.code == 4
    assert "of 1 (T=0" in said.error


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--task prompts", "--task prompts needs --data-file FILE, a .jsonl file of prompts"),
        ("--task mt-bench --data-file {mine}", "--data-file goes with --task prompts; mt-bench has its own data"),
        ("--task prompts --data-file nowhere.jsonl", "file 'nowhere.jsonl' does not exist"),
        ("--task prompts --data-file .", "file '.' is a directory"),
        ("--task prompts --data-file {mine} --task-set prompts.file=x", "option 'file' of prompts is set twice"),
        ("--task prompts --task-set prompts.file=nowhere.jsonl", "nowhere.jsonl cannot be read (No such file"),
        ("--task prompts --data-file {mine} --task-set prompts.sha256=12", "option 'sha256' of prompts"),
        ("--task prompts --data-file {mine} --task-set prompts.sha256=" + "0" * 64, f"not {'0' * 64}"),
        ("--task prompts --data-file {bad}", "bad.jsonl line 2 is damaged (has none of prompt, messages, turns"),
        ("--task mt-bench --data-dir {empty}", "has no file mt_bench_question.jsonl"),
        ("--task spec-bench --data-dir {empty}", "has no file spec_bench_question.jsonl"),
        ("--task mt-bench --task-set mt-bench.style=chat", "use --task-set mt-bench.style=plain"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check-lossless"])
def test_a_mistake_is_one_line(cli: Any, tmp_path: Path, mine: Path, command: str, argv: str, expected: str) -> None:
    bad, empty = tmp_path / "bad.jsonl", tmp_path / "empty"
    bad.write_text('{"prompt": "a"}\n{}\n')
    empty.mkdir()
    said = cli(command, *TINY, *argv.format(mine=mine, bad=bad, empty=empty).split())
    assert (said.code, said.out) == (2, "")
    assert expected in said.error
