"""The order of a run's requests, and what each turn of a conversation is asked after."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import models
from support.decoders import toy
from support.models import Model, plan, prepared, request_record

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.engine.sampler import Sampling
from specbench.results.request_schema import RequestRecord
from specbench.runner.grades.grade_run import grade
from specbench.runner.order import Order, Turns
from specbench.runner.record import Request
from specbench.runner.setup.request_state import torn_blocks

AR, MINE = toy(label="ar"), toy(label="mine")
PROMPTS = [
    Prompt("p0", "one", True, follow_ups=("two", "three")),
    Prompt("p1", "alone", True),
    Prompt("p2", "uno", True, follow_ups=("due",)),
]
ALL = 3 + 1 + 2  # answers per method


def walk(order: Order, most: int = 10**6) -> list[tuple[Method, list[Request]]]:
    """Runs what is left, at most so many requests; each is answered by its method's name and its turn."""
    taken: list[tuple[Method, list[Request]]] = []
    for method, requests in order.stretches():
        assert isinstance(method, Method)
        taken.append((method, requests))
        for request in requests:
            order.add(request_record(method.label, request))
            most -= 1
            if not most:
                return taken
    return taken


def asked(taken: Sequence[tuple[Method, list[Request]]]) -> list[tuple[str, str, int, int]]:
    return [(method.label, r.prompt_id, r.repeat, r.turn) for method, requests in taken for r in requests]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("repeats", [1, 2])
def test_every_turn_of_every_prompt_comes_once_for_each_method_and_repeat(concurrency: int, repeats: int) -> None:
    made = plan([AR, MINE], concurrency=concurrency, repeats=repeats)
    order = Order(made, prepared(PROMPTS), {})
    found = Counter(asked(walk(order)))
    assert set(found.values()) == {1}
    assert len(found) == order.total == 2 * repeats * ALL


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_turn_comes_after_the_turns_before_it(concurrency: int) -> None:
    found = asked(walk(Order(plan([AR, MINE], concurrency=concurrency), prepared(PROMPTS), {})))
    for label in ("ar", "mine"):
        for prompt in PROMPTS:
            turns = [turn for method, name, _, turn in found if (method, name) == (label, prompt.id)]
            assert turns == list(range(1, prompt.turns + 1))


def test_methods_follow_each_other_on_every_turn_in_an_order_of_their_own() -> None:
    prompts = [Prompt(f"p{n}", "a", True, follow_ups=("b",)) for n in range(12)]
    found = asked(walk(Order(plan([AR, MINE]), prepared(prompts), {})))
    rounds = [[label for label, *_ in group] for _, group in groupby(found, key=lambda item: item[1:])]
    assert all(sorted(labels) == ["ar", "mine"] for labels in rounds)
    assert {tuple(labels) for labels in rounds} == {("ar", "mine"), ("mine", "ar")}
    first, second = rounds[::2], rounds[1::2]
    assert first != second  # a turn is shuffled anew


def test_a_turn_is_asked_after_the_methods_own_answers_or_forced_after_ars() -> None:
    taken = walk(Order(plan([AR, MINE]), prepared(PROMPTS), {}))
    texts = {(m.label, r.prompt_id, r.turn): models.text(r.ids) for m, rs in taken for r in rs}
    assert texts["mine", "p0", 1] == "user: one|"
    assert texts["mine", "p0", 3] == "user: one|assistant: mine 1|user: two|assistant: mine 2|user: three|"
    assert texts["ar", "p2", 2] == "user: uno|assistant: ar 1|user: due|"
    forced = [dataclasses.replace(prompt, forced=True) for prompt in PROMPTS]
    taken = walk(Order(plan([AR, MINE]), prepared(forced), {}))
    for label in ("ar", "mine"):
        mine = {(r.prompt_id, r.turn): models.text(r.ids) for m, rs in taken for r in rs if m.label == label}
        assert mine["p0", 3] == "user: one|assistant: ar 1|user: two|assistant: ar 2|user: three|"


def test_each_repeat_has_a_history_of_its_own() -> None:
    task = prepared(PROMPTS[2:])
    order, turns = Order(plan([AR], repeats=2), task, {}), Turns(task, {})
    for _, requests in order.stretches():
        for request in requests:
            record = request_record("ar", request)
            for kept in (order, turns):
                kept.add(record.model_copy(update={"text": f"repeat {request.repeat}"}))
    for repeat in (0, 1):
        assert f"{repeat}" in models.text(turns.request("ar", "p2", repeat, 2).ids)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("done", range(1, 2 * ALL + 1))
def test_a_run_goes_on_at_any_request_of_a_conversation_where_it_was_stopped(concurrency: int, done: int) -> None:
    made = plan([AR, MINE], concurrency=concurrency)
    whole = walk(Order(made, prepared(PROMPTS), {}))
    records: list[RequestRecord] = [request_record(m.label, r) for m, rs in whole for r in rs][:done]
    rest = walk(Order(made, prepared(PROMPTS), {record.request_id: record.text for record in records}))
    assert asked(whole) == [(r.method, r.prompt_id, r.repeat, r.turn) for r in records] + asked(rest)
    first = {key: r.ids for key, r in zip(asked(whole), [r for _, rs in whole for r in rs], strict=True)}
    assert all(r.ids == first[key] for key, r in zip(asked(rest), [r for _, rs in rest for r in rs], strict=True))


def test_requests_decoded_together_have_one_temperature() -> None:
    warm = [dataclasses.replace(p, temperature=t) for p, t in zip(PROMPTS, (0.7, None, 0.7), strict=True)]
    alone = asked(walk(Order(plan([AR]), prepared(warm), {})))
    assert [prompt for _, prompt, _, turn in alone if turn == 1] == ["p0", "p1", "p2"], "in the order of the task"
    taken = walk(Order(plan([AR], concurrency=4), prepared(warm), {}))
    assert [[(r.prompt_id, r.turn, r.temperature) for r in requests] for _, requests in taken] == [
        [("p0", 1, 0.7), ("p2", 1, 0.7)], [("p0", 2, 0.7), ("p2", 2, 0.7)], [("p0", 3, 0.7)], [("p1", 1, None)],
    ]  # fmt: skip


def test_with_slots_to_fill_the_methods_follow_each_other_block_by_block_and_every_block_fills_the_slots() -> None:
    prompts = [Prompt(f"p{n:02}", "a", True) for n in range(43)]
    taken = walk(Order(plan([AR, MINE], concurrency=2), prepared(prompts), {}))
    sizes = [len(requests) for _, requests in taken]
    assert (len(taken), sum(sizes), min(sizes), max(sizes)) == (2 * 5, 2 * 43, 8, 9), "no block of less than 4 fillings"
    pairs = [taken[at : at + 2] for at in range(0, len(taken), 2)]
    for (one, mine), (other, its) in pairs:
        assert [r.prompt_id for r in mine] == [r.prompt_id for r in its]
        assert {one.label, other.label} == {"ar", "mine"}
    assert {pair[0][0].label for pair in pairs} == {"ar", "mine"}, "the first of a block is drawn"


def test_completion_text_goes_on_after_the_answer() -> None:
    prompt = Prompt("p", "Q1 A:", False, follow_ups=(" Q2 A:", " Q3 A:"))
    assert prompt.after([]) == prompt
    assert prompt.after([" yes"]) == Prompt("p", "Q1 A: yes Q2 A:", False, follow_ups=(" Q3 A:",))
    assert prompt.after([" yes", " no"]) == Prompt("p", "Q1 A: yes Q2 A: no Q3 A:", False)
    assert Model().encode(prompt.after([" yes"])) == Model().encode(Prompt("x", "Q1 A: yes Q2 A:", False))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_each_repeat_and_each_seed_has_an_order_of_its_own(concurrency: int) -> None:
    def first(seed: int) -> list[str]:
        made = plan([AR, MINE], concurrency=concurrency, repeats=16, seed=seed)
        return [label for label, *_ in asked(walk(Order(made, prepared(PROMPTS[1:2]), {})))[::2]]

    assert set(first(0)) == {"ar", "mine"}, "one that is always first has the coldest machine in every repeat"
    assert first(0) != first(1)


def test_only_turns_that_were_asked_what_ar_was_are_graded_against_its_answers() -> None:
    # Both answer [1], in other words: the second turns follow unlike texts, and equal ids say nothing of them.
    task, talks = prepared(PROMPTS[2:]), [(AR, 1), (MINE, 1), (AR, 2), (MINE, 2)]
    turns, records = Turns(task, {}), list[RequestRecord]()
    for method, turn in talks:
        records.append(request_record(method.label, turns.request(method.label, "p2", 0, turn)))
        turns.add(records[-1])
    engine: Any = SimpleNamespace(device=torch.device("cpu"), model=SimpleNamespace(dtype=torch.float32))
    graded = grade(engine, [AR, MINE], task, records, lambda temperature: Sampling())
    assert {label: found["exact"] for label, found in graded.items()} == {"ar": 2, "mine": 1}


SHORT = [Prompt(f"p{at:02d}", "abc", True) for at in range(30)]


def test_prompts_that_are_not_measured_load_the_system() -> None:
    mixed = [dataclasses.replace(prompt, temperature=(0.7, None)[at % 2]) for at, prompt in enumerate(SHORT)]
    made = prepared(mixed, limit=16, rate="2")
    order = Order(plan([AR, MINE], rate="2", concurrency=2), made, {})
    for _, requests in order.stretches():
        load = order.load(requests)
        assert load is not None
        others = [*load.warm_up, *(next(load.further) for _ in range(20))]
        assert not {each.prompt_id.removeprefix("load/") for each in others} & {*made.prompts}
        assert {each.temperature for each in others} == {requests[0].temperature}
        for request in requests:
            order.add(request_record("ar", request))
        break


def test_without_other_prompts_other_blocks_load_the_system() -> None:
    made = prepared(SHORT[:16], rate="2")
    order = Order(plan([AR], rate="2", concurrency=2), made, {})
    _, requests = next(order.stretches())
    load = order.load(requests)
    assert load is not None
    others = {next(load.further).prompt_id.removeprefix("load/") for _ in range(8)}
    assert len(requests) == 8
    assert others == {*made.prompts} - {request.prompt_id for request in requests}


def test_an_interrupted_block_of_arrivals_starts_again() -> None:
    made = prepared(SHORT[:16], rate="2,4")
    order = Order(plan([AR], rate="2,4", concurrency=2), made, {})
    records = [request_record("ar", request) for _, requests in walk(order, 8 + 3) for request in requests][: 8 + 3]
    turns = dict.fromkeys(made.prompts, 1)
    torn = torn_blocks(records, order.blocks(), turns, ())
    assert torn == {"ar": records[8:]}
    assert torn_blocks(records[:8], order.blocks(), turns, ()) == {}
    assert torn_blocks(records, order.blocks(), turns, {"ar"}) == {}
