"""Tasks whose prompts have turns, temperatures and categories, run and shown on dummy weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs

from specbench.evals import data
from specbench.results.schema import RequestRecord

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
    said = cli.ok("run", *TINY, "--out", out, *argv)
    return said, records(out)


def records(out: Path) -> list[RequestRecord]:
    (folder,) = out.iterdir()
    return [RequestRecord.model_validate(line) for line in runs.requests_on_disk(folder)]


def ids(found: list[RequestRecord]) -> dict[str, list[int]]:
    return {record.request_id: record.output_ids for record in found}


@pytest.mark.parametrize(
    ("task", "groups", "unjudged"),
    [("mt-bench", ["writing"], "judged; specbench judge RUN --judge MODEL rates them."),
     ("spec-bench", ["mt_bench"], "judged."), ("speed-bench", ["coding", "humanities", "overall"], "judged."),
     ("prompts", ["stories", "talk", "overall"], "judged.")],
)  # fmt: skip
def test_each_task_runs_with_two_methods_and_its_table_is_legible(
    cli: Any, tmp_path: Path, mine: Path, task: str, groups: list[str], unjudged: str
) -> None:
    own = ("--data-file", mine) if task == "prompts" else ()
    argv = ("--task", task, *own, "--method", "jacobi,pld", "--limit", 2, "--first")
    said, _ = run(cli, tmp_path / "out", *argv)
    (folder,) = (tmp_path / "out").iterdir()
    for columns, text in ((80, said.out), (140, cli("show", folder, columns=140).out)):
        lines = [line for line in text.splitlines() if not line.startswith("run: ")]
        assert max(map(len, lines)) <= columns
        assert "…" not in text
        header = next(line.split() for line in lines if line.startswith("method"))
        assert not {"pass@1", "accuracy"} & set(header)
        assert f"{unjudged}" in lines
        below = lines[next(at for at, line in enumerate(lines) if line.startswith("group ")) :]
        assert [line.split()[0] for line in below[2 : 2 + 2 * len(groups) : 2]] == groups
        assert [line.split()[-6] for line in below[3 : 3 + 2 * len(groups) : 2]]


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
