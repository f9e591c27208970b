from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_data import math500, mathematics
from support.oracles import lm_eval_run, needs
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.tasks.math import task
from specbench.tasks.math.task import Options, Task
from specbench.tasks.math500.task import Options as Math500Options
from specbench.tasks.math500.task import Task as Math500

pytestmark = [needs("lm_eval"), needs("math_verify")]


@pytest.fixture(scope="module")
def chat(task_data: Path) -> Task:
    return Task(Options(style="chat"), task_data)


@pytest.mark.parametrize(("chats", "style"), [(True, "chat"), (False, "completion")])
def test_problems_are_asked_as_math500s(task_data: Path, chats: bool, style: Any) -> None:
    made = Task(Options(), task_data).prompts(chats)
    theirs = Math500(Math500Options(style=style), task_data).prompts(chats)
    assert [prompt.id for prompt in made] == [f"math/{at}" for at in range(len(mathematics.MATH))]
    for mine, other in zip(made, theirs, strict=True):
        assert (mine.text, mine.stops, mine.history) == (other.text, other.stops, other.history)
        assert mine.category == other.category


def test_solutions_are_right_and_those_of_other_problems_wrong(chat: Task) -> None:
    rows = mathematics.MATH
    for at, row in enumerate(rows):
        found = chat.score(f"math/{at}", row["solution"] if at != 1 else "\\boxed{\\frac{10}{3}}")
        assert (found.passed, found.also["lm_eval"]) == (True, True), found.detail
    for at, row in enumerate(rows[:6]):
        other = math500.ROWS[at + 7]["answer"]
        found = chat.score(f"math/{at}", f"It is $\\boxed{{{other}}}$.")
        assert (found.passed, found.also) == (False, {"exact_match": False, "lm_eval": False}), (row, found.detail)


def test_one_subject_and_one_level_keep_their_ids(task_data: Path) -> None:
    everything = Task(Options(), task_data).prompts(chat=True)
    by_id = {prompt.id: prompt for prompt in everything}
    seen = []
    for name, subject in task.SUBJECTS.items():
        chosen = Task(Options(subject=name), task_data).prompts(chat=True)  # type: ignore[arg-type]
        assert {prompt.category for prompt in chosen} == {subject}
        assert all(by_id[prompt.id] == prompt for prompt in chosen)
        seen += [prompt.id for prompt in chosen]
    assert sorted(seen) == sorted(by_id)
    hard = Task(Options(level=5), task_data).prompts(chat=True)
    rows = mathematics.MATH
    assert [prompt.id for prompt in hard] == [f"math/{at}" for at, row in enumerate(rows) if row["level"] == "Level 5"]
    counted = [len(Task(Options(level=n), task_data).prompts(chat=True)) for n in (1, 3, 5)]
    assert sum(counted) == len(rows) - 1, "one is of no level"
    with pytest.raises(UsageError, check=wording):
        Task(Options(level=2), task_data).prompts(chat=True)


def test_the_files_of_the_seven_subjects_are_one(tmp_path: Path) -> None:
    for name, rows in mathematics.SUBJECTS.items():
        (tmp_path / f"math_{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made = Task(Options(style="chat"), tmp_path)
    prompts = made.prompts(chat=True)
    asked = [row for rows in mathematics.SUBJECTS.values() for row in rows]
    assert len(asked) == len(mathematics.MATH)
    assert [prompt.text.partition("\n\nReason")[0] for prompt in prompts] == [row["problem"] for row in asked]
    assert made.score(prompts[-1].id, asked[-1]["solution"]).passed
    assert [prompt.id for prompt in Task(Options(subject="precalculus"), tmp_path).prompts(chat=True)] == [
        prompt.id for prompt in prompts if prompt.category == "Precalculus"
    ]
    (tmp_path / "math_geometry.jsonl").unlink()
    with pytest.raises(UsageError, check=wording):
        Task(Options(style="chat"), tmp_path)


def test_completions_are_lm_evals_own_contexts(task_data: Path, tmp_path: Path) -> None:
    file = {"test": task_data / "math_test.jsonl"}
    model, _ = lm_eval_run("minerva_math/minerva_math500.yaml", file, tmp_path, lambda n: "", limit=3)
    prompts = Task(Options(style="completion"), task_data).prompts(chat=False)[:3]
    assert {n: p.text for n, p in enumerate(prompts)} == {n: text for n, (text, _) in model.requests.items()}


def test_a_copy_without_solutions_has_answers(tmp_path: Path) -> None:
    row = {"problem": "What is $1+1$?", "level": "Level 1", "subject": "Algebra", "answer": "\\frac{4}{2}"}
    path = tmp_path / "math_test.jsonl"
    path.write_text(json.dumps(row) + "\n")
    made = Task(Options(style="chat"), tmp_path)
    assert [prompt.text.splitlines()[0] for prompt in made.prompts(True)] == ["What is $1+1$?"]
    assert [made.score("math/0", f"It is $\\boxed{{{box}}}$.").passed for box in ("2", "3")] == [True, False]
    path.write_text(json.dumps({**row, "answer": 2}) + "\n")
    with pytest.raises(UsageError, check=wording):
        Task(Options(style="chat"), tmp_path)
