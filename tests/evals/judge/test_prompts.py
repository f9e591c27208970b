from __future__ import annotations

import re
from pathlib import Path

import pytest
import small_data
from small_data import mt_bench as own
from support import engines
from support.asserting import data_folder
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals.judge.judge_prompts import JudgePrompts
from specbench.evals.task import Question
from specbench.tasks.mt_bench.task import Options, Task

PLAIN = Question(("Q1 {x}", "Q2"))
MATHS = Question(("Q1 {x}", "Q2"), ("R1", "R2"))


@pytest.fixture(scope="module")
def prompts(task_data: Path) -> JudgePrompts:
    return JudgePrompts(task_data)


@pytest.mark.parametrize(
    ("question", "answers", "name"),
    [
        (PLAIN, ["A {1}"], "single-v1"),
        (MATHS, ["A"], "single-math-v1"),
        (PLAIN, ["A", "B"], "single-v1-multi-turn"),
        (MATHS, ["A", "B"], "single-math-v1-multi-turn"),
    ],
)
def test_each_turn_with_and_without_reference_has_its_template_with_the_fields_replaced(
    prompts: JudgePrompts, question: Question, answers: list[str], name: str
) -> None:
    (row,) = [row for row in own.JUDGE_PROMPTS if row["name"] == name]
    fields = {"question": "Q1 {x}", "question_1": "Q1 {x}", "question_2": "Q2", "answer_2": "B"}
    fields |= {"answer": answers[0], "answer_1": answers[0], "ref_answer_1": "R1", "ref_answer_2": "R2"}
    result = re.sub(r"{(\w+)}", lambda field: fields[field[1]], row["prompt_template"])
    made = prompts.render(question, answers)
    assert (made.name, made.system, made.user) == (name, row["system_prompt"], result)


def test_the_hash_is_of_all_the_judge_reads(prompts: JudgePrompts) -> None:
    made = {prompts.render(q, a).sha256 for q in (PLAIN, MATHS) for a in (["A"], ["B"], ["A", "B"], ["B", "B"])}
    assert len(made) == 8


def test_the_published_prompts_are_the_four_and_show_all_that_was_said() -> None:
    folder = data_folder(*engines.FILES)
    published = JudgePrompts(folder)
    for question in Task(Options(), folder).questions().values():
        for result in (["A1"], ["A1", "A2"]):
            made = published.render(question, result)
            shown = [*question.turns[: len(result)], *result, *(question.references or ())[: len(result)]]
            assert [text for text in shown if text not in made.user] == []


def test_another_file_one_that_lacks_a_prompt_and_none_are_refused(task_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        JudgePrompts(tmp_path)
    (tmp_path / "mt_bench_judge_prompts.jsonl").write_text(small_data.lines(own.JUDGE_PROMPTS[:-1]))
    with pytest.raises(UsageError, check=wording):
        JudgePrompts(tmp_path)
    with small_data.accept(tmp_path), pytest.raises(UsageError, check=wording):
        JudgePrompts(tmp_path)
