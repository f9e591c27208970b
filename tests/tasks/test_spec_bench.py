from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_data import mt_bench as own

from specbench.tasks.spec_bench.task import Options, Task

GROUPS = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]


def test_prompts_are_the_questions_with_their_turns(task_data: Path) -> None:
    prompts = Task(Options(), task_data).prompts(chat=True)
    assert [p.id for p in prompts] == [str(row["question_id"]) for row in own.SPEC_BENCH]
    assert [[p.text, *p.follow_ups] for p in prompts] == [row["turns"] for row in own.SPEC_BENCH]
    assert {(p.chat, p.history, p.forced, p.temperature, p.stops) for p in prompts} == {(True, (), False, None, ())}
    assert [p.category for p in prompts] == [
        f"mt_bench/{row['category']}" if row["category"] in own.CATEGORIES else row["category"]
        for row in own.SPEC_BENCH
    ]
    assert {p.forced for p in Task(Options(history="ar"), task_data).prompts(chat=True)} == {True}


@pytest.mark.parametrize("group", GROUPS)
def test_one_group_alone(task_data: Path, group: Any) -> None:
    prompts = Task(Options(group=group), task_data).prompts(chat=True)
    assert {p.category.partition("/")[0] for p in prompts} == {group}
    assert len(prompts) == (16 if group == "mt_bench" else 4)
