"""Tasks whose prompts have turns, temperatures and categories, run and shown on dummy weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

from specbench.evals import data
from specbench.results.request_schema import RequestRecord
from specbench.runner.run_progress import RunProgress
from specbench.tasks.mt_bench.task import Options, Task

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
    result = cli.ok("run", *TINY, "--verbose", "--out", out, *argv)
    return result, records(out)


def records(out: Path) -> list[RequestRecord]:
    (folder,) = out.iterdir()
    return [RequestRecord.model_validate(line) for line in runs.requests_on_disk(folder)]


def ids(found: list[RequestRecord]) -> dict[str, list[int]]:
    return {record.request_id: record.output_ids for record in found}


@pytest.mark.parametrize(
    ("task", "groups", "unjudged"),
    [("mt-bench", ["writing"], "judged; specbench score RUN --judge MODEL rates them."),
     ("spec-bench", ["mt_bench"], "judged."), ("speed-bench", ["coding", "humanities", "overall"], "judged."),
     ("prompts", ["stories", "talk", "overall"], "judged.")],
)  # fmt: skip
def test_each_task_runs_with_two_methods_and_its_table_is_legible(
    cli: Any, tmp_path: Path, mine: Path, task: str, groups: list[str], unjudged: str
) -> None:
    own = ("--data-file", mine) if task == "prompts" else ()
    argv = ("--task", task, *own, "--method", "jacobi,pld", "--limit", 2, "--first")
    result, _ = run(cli, tmp_path / "out", *argv)
    (folder,) = (tmp_path / "out").iterdir()
    for columns, text in ((80, result.out), (140, cli("show", folder, "--verbose", columns=140).out)):
        lines = [line for line in text.splitlines() if not line.startswith("run: ")]
        assert max(map(len, lines)) <= columns
        assert "…" not in text
        header = next(line.split() for line in lines if line.startswith("method"))
        assert not {"pass@1", "accuracy"} & set(header)
        assert unjudged in text
        below = lines[next(at for at, line in enumerate(lines) if line.startswith("group ")) :]
        assert [line.split()[0] for line in below[2 : 2 + 2 * len(groups) : 2]] == groups
        assert [line.split()[-6] for line in below[3 : 3 + 2 * len(groups) : 2]]


def test_turn_two_is_what_the_same_conversation_as_one_prompt_gives(cli: Any, tmp_path: Path) -> None:
    methods = ("--method", "jacobi,lookahead")
    _, talked = run(cli, tmp_path / "talk", "--task", "mt-bench", "--limit", 2, *methods)
    prompts = {prompt.id: prompt for prompt in Task(Options(style="plain")).prompts(chat=False)}
    first, second = ({(r.method, r.prompt_id): r for r in talked if r.turn == turn} for turn in (1, 2))
    assert len(second) == 3 * 2
    rows = [
        {"prompt": prompts[prompt].after([record.text]).text, "id": f"{method}/{prompt}"}
        for (method, prompt), record in first.items()
    ]
    file = tmp_path / "whole.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _, asked = run(cli, tmp_path / "whole", "--task", "prompts", "--data-file", file, *methods)
    fresh = {record.prompt_id: record for record in asked if record.method == record.prompt_id.partition("/")[0]}
    for (method, prompt), record in second.items():
        baseline = fresh[f"{method}/{prompt}"]
        for name in ("output_ids", "prompt_tokens", "output_tokens"):
            assert getattr(record, name) == getattr(baseline, name)


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
            error = cli.refused(130, "run", *TINY, "--out", out, *command)
            assert wording(error)
            assert len(records(out)) == done
            if done == 1:
                (folder,) = out.iterdir()
                assert wording.sentences(cli.ok("show", folder).out)
    _, resumed = run(cli, out, *command)
    assert ids(resumed) == ids(unbroken)
    assert [r.prompt_tokens for r in resumed] == [r.prompt_tokens for r in unbroken]


def test_forced_history_asks_all_methods_the_same_and_own_history_does_not(cli: Any, tmp_path: Path, liar: str) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for history in ("own", "ar"):
        setting = f"mt-bench.history={history}"
        out = tmp_path / history
        command = ("--task", "mt-bench", "--limit", 2, "--first", "--method", liar)
        result, found = run(cli, out, *command, "--task-set", setting)
        first = {(r.method, r.prompt_id): r.text for r in found if r.turn == 1}
        assert first["ar", "81"] != first["liar", "81"]
        (folder,) = out.iterdir()
        rows[history] = runs.rows_on_disk(folder)["liar"]
        assert f"history {history}" in result.out
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
    graded = runs.rows_on_disk(folder)["jacobi"]["lossless"]
    assert (graded["verdict"], graded["exact"]) == ("exact", 10)
