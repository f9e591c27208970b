"""Chained problems: what is asked in which turn, and which problem it is scored as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.wording import wording

from specbench.common import Prompt, UsageError
from specbench.evals.sessions import Options, chained, problem


def prompts(count: int, **more: object) -> list[Prompt]:
    made = [Prompt(f"gsm8k/{at}", f"question {at}", True, history=(("system", "be brief"),)) for at in range(count)]
    return [replace(prompt, **more) for prompt in made]  # type: ignore[arg-type]


def test_each_problem_is_asked_in_its_turn_and_the_rest_is_left_out() -> None:
    found = chained(prompts(11), 3)
    assert [prompt.id for prompt in found] == ["gsm8k/0+1+2", "gsm8k/3+4+5", "gsm8k/6+7+8"]
    second = found[1]
    assert second.turns == 3
    assert second.after(["one", " two\n"]).text == "question 5"
    assert second.after(["one", " two\n"]).history == (
        ("system", "be brief"),
        ("user", "question 3"), ("assistant", "one"),
        ("user", "question 4"), ("assistant", "two"),
    )  # fmt: skip
    assert [problem(second.id, turn) for turn in (1, 2, 3)] == ["gsm8k/3", "gsm8k/4", "gsm8k/5"]


def test_what_the_answer_begins_with_is_part_of_it_later() -> None:
    (found,) = chained(prompts(2, prefill="```python\n"), 2)
    assert found.after(["x = 1"]).history[-1] == ("assistant", "```python\nx = 1\n```"), "its stop closed the block"
    assert found.after(["x = 1\n```\nDone."]).history[-1] == ("assistant", "```python\nx = 1\n```\nDone.")
    assert found.after(["x = 1"]).prefill == "```python\n"


def test_problems_of_several_folders() -> None:
    names = ["at/1", "at/2", "lc/2", "lc/x/2", "at/3"]
    (found,) = chained([Prompt(name, name, True) for name in names], 5)
    assert found.id == "at/1+2+lc/2+lc/x/2+3"
    assert [problem(found.id, turn) for turn in range(1, 6)] == names


@pytest.mark.parametrize(
    "made",
    [
        prompts(2),
        prompts(3, chat=False, history=()),
        [*prompts(2), Prompt("gsm8k/1+2", "x", True)],
        prompts(3, follow_ups=("more",)),
        [*prompts(2), Prompt("gsm8k/9", "x", True, stops=("\n",))],
        [*prompts(2), Prompt("2", "x", True, history=(("system", "be brief"),))],
    ],
)
def test_what_cannot_be_chained(made: list[Prompt]) -> None:
    with pytest.raises(UsageError, check=wording) as refused:
        chained(made, 3)
    assert wording(refused.value)


def test_a_run_without_a_chain_records_what_it_always_did() -> None:
    assert Options().model_dump(mode="json") == {}
    assert Options(chain=3).model_dump(mode="json") == {"chain": 3}
    assert Options.model_validate(Options(chain=3).model_dump()) == Options(chain=3)
