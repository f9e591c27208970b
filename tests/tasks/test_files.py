"""The data files of all tasks: a row that is damaged is named, and another file than the published one is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_data
from support.wording import wording

from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.evals.data import manifest, read_rows
from specbench.tasks.gsm8k import task as gsm8k
from specbench.tasks.humaneval import rows as humaneval
from specbench.tasks.math500 import task as math500
from specbench.tasks.mbpp import rows as mbpp
from specbench.tasks.mt_bench import task as mt_bench
from specbench.tasks.spec_bench import task as spec_bench

# File -> what reads it, the field that must be unlike in every row, fields that a row can do without.
FILES: dict[str, tuple[Callable[[Path], object], str, set[str]]] = {
    "HumanEval.jsonl.gz": (lambda path: humaneval.load(path, humaneval.Problem), "task_id", set()),
    "HumanEvalPlus-v0.1.10.jsonl.gz": (lambda path: humaneval.load(path, humaneval.PlusProblem), "task_id", set()),
    "MbppPlus-v0.2.0.jsonl.gz": (mbpp.load_plus, "task_id", set()),
    "mbpp.jsonl": (mbpp.load_full, "task_id", set()),
    "sanitized-mbpp.json": (mbpp.load_sanitized, "task_id", set()),
    "gsm8k_test.jsonl": (lambda path: read_rows(path, gsm8k.Problem), "", set()),
    "math500.jsonl": (lambda path: read_rows(path, math500.Problem), "", set()),
    "mt_bench_question.jsonl": (mt_bench.load, "question_id", {"reference"}),
    "spec_bench_question.jsonl": (spec_bench.load, "question_id", {"reference"}),
}


def written(folder: Path, name: str, rows: list[Any]) -> Path:
    content = (json.dumps(rows) if name.endswith(".json") else small_data.lines(rows)).encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def refused(path: Path, message: str) -> None:
    """Its reader refuses the file in one line that names it."""
    with pytest.raises(UsageError, check=wording) as error:
        FILES[path.name][0](path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_a_row_with_a_bad_field_is_named(tmp_path: Path, name: str) -> None:
    read, _, optional = FILES[name]
    first, second, *_ = small_data.FILES[name]
    read(written(tmp_path, name, [first, second]))
    at = r"(line|entry) 2 is damaged \(field '{}[.']"
    for field in second:
        for bad in (None, 3.5 if field != "atol" else "0", {"x": 1}):
            if bad is not None or field not in optional:
                refused(written(tmp_path, name, [first, {**second, field: bad}]), at.format(field))
        if field not in optional:
            without = {key: value for key, value in second.items() if key != field}
            refused(written(tmp_path, name, [first, without]), at.format(field))
    refused(written(tmp_path, name, [first, {**second, "more": 1}]), at.format("more"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gsm8k_test.jsonl", {"answer": "Two."}), ("gsm8k_test.jsonl", {"answer": "#### two"}),
        ("math500.jsonl", {"solution": "2"}), ("math500.jsonl", {"answer": ""}),
        ("mt_bench_question.jsonl", {"turns": ["a"]}), ("mt_bench_question.jsonl", {"turns": ["a", 3]}),
        ("mt_bench_question.jsonl", {"category": "cooking"}), ("mt_bench_question.jsonl", {"question_id": "82"}),
        ("spec_bench_question.jsonl", {"turns": []}), ("spec_bench_question.jsonl", {"category": "poems"}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    first, second, *_ = small_data.FILES[name]
    (field,) = change
    refused(written(tmp_path, name, [first, {**second, **change}]), rf"line 2 is damaged \(field '{field}[.']")


@pytest.mark.parametrize("name", FILES)
def test_a_problem_twice_a_truncated_file_and_another_kind_are_named(tmp_path: Path, name: str) -> None:
    _, id, _ = FILES[name]
    rows = small_data.FILES[name]
    if id:
        refused(written(tmp_path, name, [rows[0], {**rows[1], id: rows[0][id]}]), "2.*is there twice")
    path = written(tmp_path, name, rows)
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "truncated|not JSON")
    written(tmp_path, name, [])
    path.write_bytes(gzip.compress(b"[1]\n") if name.endswith(".gz") else b"7\n")
    refused(path, "not a JSON")


TASKS = {
    "humaneval": ({"tests": "plus"}, 2), "gsm8k": ({"style": "chat"}, 1), "math500": ({}, 1), "mt-bench": ({}, 1),
    "spec-bench": ({}, 1), "mbpp plus": ({"variant": "plus"}, 1), "mbpp test": ({"variant": "test"}, 1),
    "mbpp sanitized": ({"variant": "sanitized"}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_another_file_than_the_published_one_and_none_are_refused(task_data: Path, tmp_path: Path, name: str) -> None:
    if name in ("gsm8k", "math500"):
        pytest.importorskip("lm_eval", reason="needs pip install 'specbench-llm[eval]'")
        pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")
    card = registry.task(name.split()[0])
    module, (options, count) = card.load(), TASKS[name]
    files = manifest(card.folder / "task.toml")
    if name.startswith("mbpp"):
        files = files[["plus", "test", "sanitized"].index(options["variant"]) :]
    there: list[Path] = []
    for file in files[:count]:
        path = tmp_path / file.name
        with small_data.accept(*there):
            with pytest.raises(UsageError, match=file.name):
                module.Task(module.Options(**options), tmp_path)
            path.write_bytes((task_data / file.name).read_bytes())
            with pytest.raises(UsageError, match=file.sha256):
                module.Task(module.Options(**options), tmp_path)
        there.append(path)
    with small_data.accept(*there):
        module.Task(module.Options(**options), tmp_path)
