from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_data
from small_data import mt_bench as own
from support.wording import wording

from specbench.common import options
from specbench.common.errors import UsageError
from specbench.tasks.mt_bench import task
from specbench.tasks.mt_bench.task import Options, Task

QUESTIONS, REFERENCES = "mt_bench_question.jsonl", "mt_bench_reference_gpt4.jsonl"


def test_prompts_are_the_questions_with_two_turns(task_data: Path) -> None:
    for prompt, row in zip(Task(Options(), task_data).prompts(chat=True), own.QUESTIONS, strict=True):
        assert (prompt.id, prompt.category) == (str(row["question_id"]), row["category"])
        assert [prompt.text, *prompt.follow_ups] == row["turns"]
        assert (prompt.chat, prompt.history, prompt.prefill, prompt.stops) == (True, (), "", ())
        assert (prompt.turns, prompt.forced, prompt.temperature) == (2, False, None)


def test_turn_two_holds_the_first_answer_without_the_blanks_around_it(task_data: Path) -> None:
    prompt = Task(Options(), task_data).prompts(chat=True)[0]
    second = prompt.after(["\n Gulls. \n"])
    assert second.history == (("user", prompt.text), ("assistant", "Gulls."))
    assert (second.text, second.turns) == (prompt.follow_ups[0], 1)


def test_plain_text_goes_on_from_turn_to_turn(task_data: Path) -> None:
    made = Task(Options(), task_data)
    prompt = made.prompts(chat=False)[0]
    assert made.options.style == "plain"
    first, second = own.QUESTIONS[0]["turns"]
    assert (prompt.chat, prompt.stops) == (False, ("\nUSER:",))
    assert prompt.text == f"USER: {first}\nASSISTANT:"
    assert prompt.after([" Gulls."]).text == f"USER: {first}\nASSISTANT: Gulls.\nUSER: {second}\nASSISTANT:"
    with pytest.raises(UsageError, check=wording):
        Task(Options(style="chat"), task_data).prompts(chat=False)


def test_official_temperatures_are_those_of_fastchat(task_data: Path) -> None:
    prompts = Task(Options(temperatures="official"), task_data).prompts(chat=True)
    assert {prompt.category: prompt.temperature for prompt in prompts} == {
        "writing": 0.7, "roleplay": 0.7, "stem": 0.1, "humanities": 0.1,
        "reasoning": 0, "math": 0, "coding": 0, "extraction": 0,
    }  # fmt: skip


def test_history_of_ar_is_forced_and_the_judge_hears_of_it(task_data: Path) -> None:
    for history in ("own", "ar"):
        made = Task(options.parse_options(Options, {"history": history}, "mt-bench"), task_data)
        assert {prompt.forced for prompt in made.prompts(chat=True)} == {history == "ar"}
        assert {question.forced for question in made.questions().values()} == {history == "ar"}


def test_a_question_without_reference_is_named(tmp_path: Path) -> None:
    path = tmp_path / REFERENCES
    path.write_text(json.dumps({"question_id": 101, "choices": [{"index": 0, "turns": ["one only"]}]}) + "\n")
    rows = [task.Row(question_id=101, category="math", turns=["a", "b"])]
    with pytest.raises(UsageError, check=wording):
        task.load_references(path, rows)


def test_a_run_does_not_need_the_reference_answers(task_data: Path, tmp_path: Path) -> None:
    (tmp_path / QUESTIONS).write_bytes((task_data / QUESTIONS).read_bytes())
    with small_data.accept(tmp_path):
        made = Task(Options(), tmp_path)
        assert len(made.prompts(chat=True)) == len(own.QUESTIONS)
        with pytest.raises(UsageError, check=wording):
            made.questions()
