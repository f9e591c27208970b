from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import speed
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals.data import recording_files
from specbench.tasks.speed_bench.task import TIERS, Options, Task


def test_prompts_are_the_questions_with_their_turns_by_category(task_data: Path) -> None:
    prompts = Task(Options(), task_data).prompts(chat=True)
    assert [p.id for p in prompts] == [row["question_id"] for row in speed.QUALITATIVE]
    assert [[p.text, *p.follow_ups] for p in prompts] == [row["turns"] for row in speed.QUALITATIVE]
    assert [p.category for p in prompts] == list(speed.CATEGORIES), "its kinds are no rows of the table"
    assert {(p.chat, p.history, p.forced, p.temperature, p.stops) for p in prompts} == {(True, (), False, None, ())}
    assert {p.forced for p in Task(Options(history="ar"), task_data).prompts(chat=True)} == {True}


def test_throughput_is_by_tier_and_kind(task_data: Path) -> None:
    assert TIERS == speed.TIERS
    prompts = Task(Options(split="throughput_1k"), task_data).prompts(chat=True)
    assert [p.category for p in prompts] == [
        f"{tier}/{kind}" for tier in TIERS for kind in ("sorting", "creative writing")
    ]


def test_a_kind_is_no_further_level_of_the_table_and_need_not_be(tmp_path: Path) -> None:
    rows = [
        {**row, "sub_category": kind} for row, kind in zip(speed.THROUGHPUT, ("a/b", " \n", None, "c  d"), strict=False)
    ]
    (tmp_path / "speed_bench_throughput_1k.jsonl").write_text(small_data.lines(rows))
    prompts = Task(Options(split="throughput_1k"), tmp_path).prompts(chat=True)
    assert [p.category for p in prompts] == ["low_entropy/a b", "low_entropy", "mixed", "mixed/c d"]


def test_a_file_of_the_users_is_taken_and_only_its_name_recorded(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(small_data.lines(speed.QUALITATIVE))
    with recording_files() as files:
        made = Task(Options(file=str(path)), tmp_path / "nowhere")
    prompts = made.prompts(chat=False)
    assert prompts[0].text == "USER: Tell me of coding.\nASSISTANT:"
    assert (made.options.style, made.options.file) == ("plain", "mine.jsonl")
    assert [(file.name, file.verified) for file in files.values()] == [("mine.jsonl", False)]
    with pytest.raises(UsageError, check=wording):
        Task(Options(file=str(tmp_path / "none.jsonl")))


@pytest.mark.parametrize(
    ("split", "rows", "category"),
    [("qualitative", speed.THROUGHPUT, "low_entropy"), ("throughput_8k", speed.QUALITATIVE, "coding")],
)
def test_a_file_of_another_split_is_refused(tmp_path: Path, split: Any, rows: Any, category: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(small_data.lines(rows))
    with pytest.raises(UsageError, check=wording) as error:
        Task(Options(file=str(path), split=split))
    assert str(path) in str(error.value)
