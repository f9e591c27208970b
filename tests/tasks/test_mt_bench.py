from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_files import data_folder

from specbench.common import options
from specbench.common.errors import UsageError
from specbench.evals.data import read_jsonl
from specbench.tasks.mt_bench import task
from specbench.tasks.mt_bench.task import Options, Task

QUESTIONS, REFERENCES = "mt_bench_question.jsonl", "mt_bench_reference_gpt4.jsonl"


@pytest.fixture(scope="module")
def data() -> Path:
    return data_folder(QUESTIONS, REFERENCES)


@pytest.fixture(scope="module")
def rows(data: Path) -> list[dict[str, Any]]:
    return read_jsonl(data / QUESTIONS)


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_prompts_are_the_published_questions_with_two_turns(data: Path, rows: list[dict[str, Any]]) -> None:
    prompts = Task(Options(), data).prompts(chat=True)
    assert len(prompts) == 80
    for prompt, row in zip(prompts, rows, strict=True):
        assert (prompt.id, prompt.category) == (str(row["question_id"]), row["category"])
        assert [prompt.text, *prompt.follow_ups] == row["turns"]
        assert (prompt.chat, prompt.history, prompt.prefill, prompt.stops) == (True, (), "", ())
        assert (prompt.turns, prompt.forced, prompt.temperature) == (2, False, None)
    assert set(Counter(prompt.category for prompt in prompts).values()) == {10}


def test_turn_two_holds_the_first_answer_without_the_blanks_around_it(data: Path) -> None:
    prompt = Task(Options(), data).prompts(chat=True)[0]
    second = prompt.after(["\n Aloha. \n"])
    assert second.history == (("user", prompt.text), ("assistant", "Aloha."))
    assert (second.text, second.turns) == (prompt.follow_ups[0], 1)


def test_plain_text_goes_on_from_turn_to_turn(data: Path, rows: list[dict[str, Any]]) -> None:
    made = Task(Options(), data)
    prompt = made.prompts(chat=False)[0]
    assert made.options.style == "plain"
    first, second = rows[0]["turns"]
    assert (prompt.chat, prompt.stops) == (False, ("\nUSER:",))
    assert prompt.text == f"USER: {first}\nASSISTANT:"
    assert prompt.after([" Aloha."]).text == f"USER: {first}\nASSISTANT: Aloha.\nUSER: {second}\nASSISTANT:"


def test_chat_needs_a_template(data: Path) -> None:
    with pytest.raises(UsageError, match=r"--task-set mt-bench\.style=plain"):
        Task(Options(style="chat"), data).prompts(chat=False)


def test_official_temperatures_are_those_of_fastchat(data: Path) -> None:
    prompts = Task(Options(temperatures="official"), data).prompts(chat=True)
    assert {prompt.category: prompt.temperature for prompt in prompts} == {
        "writing": 0.7, "roleplay": 0.7, "stem": 0.1, "humanities": 0.1,
        "reasoning": 0, "math": 0, "coding": 0, "extraction": 0,
    }  # fmt: skip


def test_history_of_ar_is_forced(data: Path) -> None:
    assert all(prompt.forced for prompt in Task(Options(history="ar"), data).prompts(chat=True))


@pytest.mark.parametrize(("chat", "digest"), [(True, "e23675087eb9389d"), (False, "bc74ae12a399a28b")])
def test_prompts_change_only_with_the_version(data: Path, chat: bool, digest: str) -> None:
    """When this fails, raise ``version`` in task.toml and then renew the digest."""
    prompts = [(p.id, p.text, p.follow_ups, p.stops) for p in Task(Options(), data).prompts(chat)]
    assert hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("wrong", [{"histroy": "ar"}, {"history": "mine"}, {"temperatures": "0"}])
def test_a_misspelt_option_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"histo|temperatures"):
        options.parse(Options, wrong, "mt-bench")


# -- for the judge -----------------------------------------------------------------------------------------------------


def test_math_reasoning_and_coding_have_reference_answers_to_both_turns(data: Path) -> None:
    made = Task(Options(), data)
    questions = made.questions()
    categories = {prompt.id: prompt.category for prompt in made.prompts(chat=True)}
    with_reference = {categories[name] for name, question in questions.items() if question.references}
    assert with_reference == {"math", "reasoning", "coding"}
    assert sum(question.references is not None for question in questions.values()) == 30
    assert all(len(q.references) == 2 for q in questions.values() if q.references)
    assert (questions["101"].references or [""])[0].startswith("If you have just overtaken")


def test_the_judge_hears_of_forced_history(data: Path) -> None:
    assert not any(question.forced for question in Task(Options(), data).questions().values())
    assert all(question.forced for question in Task(Options(history="ar"), data).questions().values())


def test_a_question_without_reference_is_named(tmp_path: Path) -> None:
    path = tmp_path / REFERENCES
    path.write_text(json.dumps({"question_id": 101, "choices": [{"index": 0, "turns": ["one only"]}]}) + "\n")
    rows = [task.Row(question_id=101, category="math", turns=["a", "b"])]
    with pytest.raises(UsageError, match=r"each turn of question 101 \(math\)"):
        task.load_references(path, rows)


# -- data --------------------------------------------------------------------------------------------------------------

ROW = {"question_id": 81, "category": "writing", "turns": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": None}, "line 3 is damaged .field 'turns'"),
        ({"turns": ["a"]}, "line 3 is damaged .field 'turns'"),
        ({"turns": ["a", 3]}, r"line 3 is damaged .field 'turns\.1'"),
        ({"category": "cooking"}, "line 3 is damaged .field 'category'"),
        ({"category": None}, "line 3 is damaged .field 'category'"),
        ({"question_id": "82"}, "line 3 is damaged .field 'question_id'"),
        ({"question_id": 81}, "line 3 is damaged .field 'question_id': 81 is there twice"),
        ({"tuns": []}, "line 3 is damaged .field 'tuns'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.jsonl"
    row = {name: value for name, value in {**ROW, "question_id": 82, **change}.items() if value is not None}
    path.write_text(f"{json.dumps(ROW)}\n\n{json.dumps(row)}\n")
    with pytest.raises(UsageError, match=message) as error:
        task.load(path)
    assert "\n" not in str(error.value)


def test_another_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / QUESTIONS).write_text(json.dumps(ROW))
    with pytest.raises(UsageError, match="expected 119565adbab82227"):
        Task(Options(), tmp_path)
    with pytest.raises(UsageError, match=r"no file mt_bench_question\.jsonl"):
        Task(Options(), tmp_path.parent)


def test_a_run_does_not_need_the_reference_answers(data: Path, tmp_path: Path) -> None:
    (tmp_path / QUESTIONS).write_bytes((data / QUESTIONS).read_bytes())
    made = Task(Options(), tmp_path)
    assert len(made.prompts(chat=True)) == 80
    with pytest.raises(UsageError, match=rf"no file {REFERENCES}"):
        made.questions()
