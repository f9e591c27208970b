"""A task's prompts as a run gets them: turns counted, room for all of them, and a hash of what is asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.models import Model, prepared, text
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.evals.prompt_draw import permutation
from specbench.models.loaded_model import LoadedModel
from specbench.results.schema import PromptDraw

TALK = Prompt("talk", "one", True, follow_ups=("two", "three"), category="a/b", stops=("#",), temperature=0.7)
LINE = Prompt("line", "Once", False)


def test_a_request_is_a_turn_of_its_prompt() -> None:
    made = prepared([TALK, LINE])
    first, third = made.request("talk"), made.request("talk", 4, ["yes", "no"])
    assert (first.turn, first.repeat, text(first.ids)) == (1, 0, "user: one|")
    assert text(third.ids) == "user: one|assistant: yes|user: two|assistant: no|user: three|"
    assert (third.turn, third.repeat, third.category, third.temperature) == (3, 4, "a/b", 0.7)
    assert (third.rule.stops, third.rule.budget) == (("#",), 10)
    assert [*made.prompts] == ["talk", "line"]
    spec = prepared([TALK, LINE]).spec
    assert (spec.prompts, spec.requests, spec.name, spec.version, spec.metric) == (2, 4, "toy-task", 3, "")
    assert prepared([LINE]).budget == 10
    assert prepared([LINE], max_new_tokens=None).budget == 7


def test_there_is_room_for_all_turns_or_the_conversation_is_refused() -> None:
    made = prepared([TALK])
    longest_answers = ["x" * made.budget] * 2
    assert made.longest >= len(made.request("talk", 0, longest_answers).ids)
    asked = len(prepared([TALK]).request("talk", 0, ["", ""]).ids)
    assert prepared([TALK], Model(context=asked + 30)).budget == 10
    with pytest.raises(UsageError, check=wording):
        prepared([TALK], Model(context=asked + 29))
    rendered: list[Prompt] = []

    class Counting(Model):
        def encode(self, prompt: Prompt) -> list[int]:
            rendered.append(prompt)
            return super().encode(prompt)

    long = Prompt("+".join(map(str, range(1000))), "one", True, follow_ups=("more",) * 999)
    with pytest.raises(UsageError, check=wording) as refused:
        prepared([long], Counting(context=100))
    assert len(rendered) == 1
    assert len(str(refused.value)) < 300
    with pytest.raises(UsageError, check=wording):
        prepared([LINE, TALK, LINE])
    with pytest.raises(UsageError, check=wording):
        prepared([])


MANY = [Prompt(f"t/{at}", "Once", False) for at in range(10)]


def test_the_limit_draws_prompts_and_without_a_seed_takes_the_first() -> None:
    made = prepared(MANY, limit=3)
    assert list(made.prompts) == ["t/3", "t/7", "t/9"]
    assert made.spec.taken == PromptDraw(of=10, seed=0)
    other = prepared(MANY, limit=3, prompt_seed=1)
    assert list(other.prompts) != list(made.prompts)
    assert other.spec.taken == PromptDraw(of=10, seed=1)
    made = prepared(MANY, limit=3, first=True)
    assert list(made.prompts) == ["t/0", "t/1", "t/2"]
    assert made.spec.taken == PromptDraw(of=10, seed=None)


@pytest.mark.parametrize("limit", [None, 10, 11])
def test_where_all_are_taken_nothing_is_said_of_a_draw(limit: int | None) -> None:
    made = prepared(MANY, limit=limit)
    assert list(made.prompts) == [prompt.id for prompt in MANY]
    assert made.spec.taken is None
    assert made.spec == prepared(MANY).spec


def test_a_sweeps_prompts_are_in_the_order_of_the_draw_and_the_held_out_ones_after_them() -> None:
    order = [prompt.id for prompt in permutation(MANY, 0)]
    made = prepared(MANY, held_out=2, limit=3)
    assert list(made.prompts) == [*order[:3], order[9], order[8]]
    assert made.spec.taken == PromptDraw(of=10, seed=0, held_out=2)
    assert {*order[:3]} == {*prepared(MANY, limit=3).prompts}
    every = prepared(MANY, held_out=0)
    assert (list(every.prompts), every.spec.taken) == (order, None)


@pytest.mark.parametrize(
    "change",
    [{"id": "other"}, {"text": "ONE"}, {"follow_ups": ("two", "four")}, {"stops": ()}, {"history": (("system", "s"),)}],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_is_of_all_that_is_asked(change: dict[str, Any]) -> None:
    one, other = prepared([TALK]), prepared([dataclasses.replace(TALK, **change)])
    assert one.spec.prompts_sha256 == prepared([TALK]).spec.prompts_sha256
    assert one.spec.prompts_sha256 != other.spec.prompts_sha256


def test_turn_two_is_tokenised_as_the_same_conversation_in_one_prompt(smollm2: LoadedModel) -> None:
    made = prepared([TALK], smollm2)
    assert made.prompts["talk"].chat
    turns = (("user", "one"), ("assistant", "yes"), ("user", "two"), ("assistant", "no"))
    whole = Prompt("x", "three", True, history=turns)  # type: ignore[arg-type]
    assert made.request("talk", 0, [" yes\n", "no"]).ids == smollm2.encode(whole)
