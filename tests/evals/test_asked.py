"""Asked: which questions of the tasks are known, and in which prompts they are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.evals.benchmark_questions import known_questions, task_asking

HENS = "Ann’s hens lay 16 eggs a day. She keeps 7 and sells the rest for $2 each. What does she earn in a day?"


def test_questions_of_every_task_that_are_at_hand(task_data: Path, tmp_path: Path) -> None:
    known = known_questions(task_data)
    assert known[HENS] == "gsm8k"
    assert {"gsm8k", "humaneval", "math500", "mbpp", "aime25", "codesearchnet", "speed-bench"} <= set(known.values())
    (tmp_path / "math_test.jsonl").write_text((task_data / "math_test.jsonl").read_text())
    theirs = known_questions(tmp_path)
    assert {*theirs.values()} == {"math"}
    assert {known[words] for words in theirs} == {"math500"}, "it is a question of the published file first"
    (tmp_path / "math_test.jsonl").unlink()
    assert min(map(len, known)) >= 40  # what is shorter is asked by chance
    trained = [json.loads(line)["question"] for line in (task_data / "gsm8k_train.jsonl").read_text().splitlines()]
    assert not any(task_asking(question, known) for question in trained)
    assert known_questions(tmp_path) == {}  # nothing is fetched for it
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({"question": "x" * 50}) + "\n")
    assert known_questions(tmp_path) == {}  # another file than the published one


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HENS, True),
        (HENS.replace(" She", "\r\n She") + "  ", True),
        (f"Solve it step by step.\n\nQuestion: {HENS}\nAnswer:", True),
        (f"USER: {HENS}\nASSISTANT:", True),
        (HENS.replace("16", "17"), False),
        ("", False),
    ],
)
def test_a_question_is_found_by_its_words(text: str, found: bool) -> None:
    assert task_asking(text, {HENS: "gsm8k"}) == ("gsm8k" if found else None)
