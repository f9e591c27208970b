from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_files import data_folder

from specbench.common.errors import UsageError
from specbench.evals.data import read_jsonl
from specbench.tasks.spec_bench import task
from specbench.tasks.spec_bench.task import Options, Task

FILE, MT_BENCH = "spec_bench_question.jsonl", "mt_bench_question.jsonl"
GROUPS = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]


@pytest.fixture(scope="module")
def data() -> Path:
    return data_folder(FILE)


def test_prompts_are_the_published_questions_with_their_turns(data: Path) -> None:
    rows = read_jsonl(data / FILE)
    prompts = Task(Options(), data).prompts(chat=True)
    assert [p.id for p in prompts] == [str(row["question_id"]) for row in rows]
    assert [[p.text, *p.follow_ups] for p in prompts] == [row["turns"] for row in rows]
    assert {(p.chat, p.history, p.forced, p.temperature, p.stops) for p in prompts} == {(True, (), False, None, ())}


def test_there_are_six_groups_of_eighty_in_thirteen_categories(data: Path) -> None:
    prompts = Task(Options(), data).prompts(chat=True)
    assert Counter(p.category.partition("/")[0] for p in prompts) == dict.fromkeys(GROUPS, 80)
    assert len({p.category for p in prompts}) == 13
    assert Counter(p.category for p in prompts)["mt_bench/writing"] == 10
    assert {p.turns for p in prompts if p.category.startswith("mt_bench/")} == {2}
    assert {p.turns for p in prompts if not p.category.startswith("mt_bench/")} == {1}
    assert sum(p.turns for p in prompts) == 560


@pytest.mark.parametrize("group", GROUPS)
def test_one_group_alone(data: Path, group: Any) -> None:
    prompts = Task(Options(group=group), data).prompts(chat=True)
    assert {p.category.partition("/")[0] for p in prompts} == {group}
    assert len(prompts) == 80


def test_its_mt_bench_questions_are_those_of_mt_bench(data: Path) -> None:
    theirs = {row["question_id"]: row["turns"] for row in read_jsonl(data_folder(MT_BENCH) / MT_BENCH)}
    mine = {int(p.id): [p.text, *p.follow_ups] for p in Task(Options(group="mt_bench"), data).prompts(chat=True)}
    assert mine == theirs


def test_plain_text_for_a_model_without_a_template(data: Path) -> None:
    made = Task(Options(group="qa"), data)
    assert made.prompts(chat=False)[0].text == "USER: Who played anna in once upon a time?\nASSISTANT:"
    assert made.options.style == "plain"
    with pytest.raises(UsageError, match=r"--task-set spec-bench\.style=plain"):
        Task(Options(style="chat"), data).prompts(chat=False)


def test_history_of_ar_is_forced(data: Path) -> None:
    assert all(prompt.forced for prompt in Task(Options(history="ar"), data).prompts(chat=True))


@pytest.mark.parametrize(("chat", "digest"), [(True, "b347e28998761793"), (False, "91dc2e7145d34186")])
def test_prompts_change_only_with_the_version(data: Path, chat: bool, digest: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    prompts = [(p.id, p.text, p.follow_ups, p.stops, p.category) for p in Task(Options(), data).prompts(chat)]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16] == digest


ROW = {"question_id": 321, "category": "qa", "turns": ["a"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": None}, "line 2 is damaged .field 'turns'"),
        ({"turns": []}, "line 2 is damaged .field 'turns'"),
        ({"category": "poems"}, "line 2 is damaged .field 'category'"),
        ({"question_id": 321}, "line 2 is damaged .field 'question_id': 321 is there twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.jsonl"
    row = {name: value for name, value in {**ROW, "question_id": 322, **change}.items() if value is not None}
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    with pytest.raises(UsageError, match=message):
        task.load(path)


def test_another_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(ROW))
    with pytest.raises(UsageError, match="expected 4b6d33e79484f984"):
        Task(Options(), tmp_path)
    with pytest.raises(UsageError, match=rf"no file {FILE}"):
        Task(Options(), tmp_path.parent)
