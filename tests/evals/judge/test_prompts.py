from __future__ import annotations

import json
from pathlib import Path

import judged_runs
import pytest
from data_files import data_folder

from specbench.common.errors import UsageError
from specbench.evals.judge.prompts import JudgePrompts
from specbench.evals.task import Question
from specbench.tasks.mt_bench.task import Options, Task

PLAIN = Question(("Q1 {x}", "Q2"))
MATHS = Question(("Q1", "Q2"), ("R1", "R2"))


@pytest.fixture(scope="module")
def data() -> Path:
    return data_folder(*judged_runs.FILES)


@pytest.fixture(scope="module")
def prompts(data: Path) -> JudgePrompts:
    return JudgePrompts(data)


@pytest.mark.parametrize(
    ("question", "answers", "name", "end"),
    [
        (PLAIN, ["A {1}"], "single-v1", "[Question]\nQ1 {x}\n\n[The Start of Assistant's Answer]\nA {1}\n"),
        (MATHS, ["A"], "single-math-v1", "[The Start of Reference Answer]\nR1\n[The End of Reference Answer]"),
        (PLAIN, ["A", "B"], "single-v1-multi-turn", "### User:\nQ1 {x}\n\n### Assistant A:\nA\n\n### User:\nQ2\n\n"),
        (MATHS, ["A", "B"], "single-math-v1-multi-turn", "### User:\nQ2\n\n### Reference answer:\nR2\n\n<|The End"),
    ],
)  # fmt: skip
def test_fastchats_prompt_for_each_turn_with_and_without_reference(
    prompts: JudgePrompts, question: Question, answers: list[str], name: str, end: str
) -> None:
    made = prompts.render(question, answers)
    assert made.name == name
    assert end in made.user
    assert made.system.startswith("You are a helpful assistant." if len(answers) == 1 else "Please act as an impartial")


def test_the_prompt_is_the_template_with_its_fields_replaced(data: Path, prompts: JudgePrompts) -> None:
    lines = (data / "mt_bench_judge_prompts.jsonl").read_text().splitlines()
    templates = {row["name"]: row for row in map(json.loads, lines)}
    template = templates["single-math-v1-multi-turn"]["prompt_template"]
    for field in ("question_1", "question_2", "answer_1", "answer_2", "ref_answer_1", "ref_answer_2"):
        assert f"{{{field}}}" in template
        template = template.replace(f"{{{field}}}", field[0].upper() + field[-1])
    question = Question(("Q1", "Q2"), ("R1", "R2"))
    assert prompts.render(question, ["A1", "A2"]).user == template


def test_an_answer_is_put_in_without_the_blanks_around_it(prompts: JudgePrompts) -> None:
    assert prompts.render(PLAIN, ["\n A \n"]).sha256 == prompts.render(PLAIN, ["A"]).sha256


def test_the_hash_is_of_all_the_judge_reads(prompts: JudgePrompts) -> None:
    made = {prompts.render(q, a).sha256 for q in (PLAIN, MATHS) for a in (["A"], ["B"], ["A", "B"], ["B", "B"])}
    assert len(made) == 8


def test_there_is_no_prompt_for_a_third_turn(prompts: JudgePrompts) -> None:
    with pytest.raises(UsageError, match="two turns at most"):
        prompts.render(PLAIN, ["A", "B", "C"])


def test_every_question_of_the_data_has_its_prompts(data: Path, prompts: JudgePrompts) -> None:
    names = [prompts.render(q, ["A"] * n).name for q in Task(Options(), data).questions().values() for n in (1, 2)]
    assert [names.count(name) for name in sorted(set(names))] == [30, 30, 50, 50]


def test_another_file_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file mt_bench_judge_prompts\.jsonl"):
        JudgePrompts(tmp_path)
    (tmp_path / "mt_bench_judge_prompts.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="expected fd283293406d024f"):
        JudgePrompts(tmp_path)
