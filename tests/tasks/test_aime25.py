from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_data import mathematics as own
from support.oracles import needs
from support.wording import wording

from specbench.common import UsageError
from specbench.evals import mathematics
from specbench.tasks.aime25.task import Options, Task, load

pytestmark = [needs("lm_eval"), needs("math_verify")]


@pytest.fixture(scope="module")
def chat(task_data: Path) -> Task:
    return Task(Options(style="chat"), task_data)


def test_problems_are_asked_as_math500s(task_data: Path, chat: Task) -> None:
    prompts = chat.prompts(chat=True)
    assert [prompt.id for prompt in prompts] == [f"aime25/{at}" for at in range(len(own.AIME))]
    for prompt, row in zip(prompts, own.AIME, strict=True):
        assert prompt.text == f"{row['problem']}\n\nReason step by step, and put your final answer within \\boxed{{}}."
        assert (prompt.chat, prompt.stops, prompt.history, prompt.category) == (True, (), (), "")
    plain = Task(Options(), task_data).prompts(chat=False)
    assert {(prompt.chat, prompt.stops, prompt.text.count("Problem:")) for prompt in plain} == {
        (False, ("Problem:",), 5)
    }
    assert all(row["problem"] in prompt.text for prompt, row in zip(plain, own.AIME, strict=True))


def test_right_answers_are_right_and_wrong_ones_wrong(chat: Task) -> None:
    for at, row in enumerate(own.AIME):
        found = chat.score(f"aime25/{at}", f"Thus it is $\\boxed{{{row['answer']}}}$.")
        assert (found.passed, found.reason, found.also) == (True, "pass", {"exact_match": True})
        found = chat.score(f"aime25/{at}", f"Thus it is $\\boxed{{{int(row['answer']) + 1}}}$.")
        assert (found.passed, found.reason, found.also) == (False, "fail", {"exact_match": False})


@pytest.mark.parametrize(
    ("text", "passed", "exact"),
    [
        ("\\boxed{070}", True, True), ("\\boxed{ $70$ }", True, True), ("\\boxed{8}, then \\boxed{70}", True, True),
        ("\\boxed{69+1}", True, False), ("\\boxed{70.0}", True, False), ("\\boxed{70^\\circ}", True, False),
        ("The answer is 70", True, False), ("It may be 70, or so", False, False), ("\\boxed{70", False, False),
        ("\\boxed{70} or \\boxed{71}", False, False), ("\\boxed{seventy}", False, False), ("\\boxed{}", False, False),
        ("\\boxed{-70}", False, False),
    ],
)  # fmt: skip
def test_hand_written_answers(chat: Task, text: str, passed: bool, exact: bool) -> None:
    found = chat.score("aime25/0", text)
    assert (found.passed, found.also) == (passed, {"exact_match": exact}), found.detail


def test_a_judge_that_gives_up_fails_the_answer(chat: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(job: Any, wall_s: float) -> dict[str, Any]:
        return {"error": "memory", "detail": "the judge was killed"}

    monkeypatch.setattr(mathematics, "ask", gone)
    found = chat.score("aime25/0", "\\boxed{70}")
    assert (found.passed, found.reason, found.detail) == (False, "memory", "the judge was killed")


def test_an_answer_may_have_gone_through_a_table_of_floats(tmp_path: Path) -> None:
    path = tmp_path / "aime25.jsonl"
    path.write_text('{"id": "0", "question": "Find it.", "answer": 70.0}\n')
    assert [problem.answer for problem in load(path)] == [70]
    for wrong in ("70.5", "1000.0", "1e400", "true"):
        path.write_text(f'{{"question": "Find it.", "answer": {wrong}}}\n')
        with pytest.raises(UsageError, check=wording):
            load(path)
