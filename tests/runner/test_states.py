"""States: what a row's requests hand on to each other begins empty, stays that row's own, and its order is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import decoders, models
from support.asserting import known
from support.decoders import Decoder, toy
from support.models import plan, prepared, request_record

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.models.loaded_model import ByteTokenizer
from specbench.planning.methods import plan_methods
from specbench.results.calibration import StoredTimes
from specbench.results.request_schema import RequestRecord
from specbench.runner.order import Order
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.setup.request_state import broken_off
from specbench.runner.stop import StopRule

VOCAB = 61


class Diary(Decoder):
    """Writes down what each request finds, and adds itself: its prompt's first token."""

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        self.state = context.state  # type: ignore[method-assign]

    @staticmethod
    def state(options: Any) -> Any:
        return []

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self.found: list[int] = list(self.state)  # type: ignore[call-overload]
        self.state.append(prompt[0])  # type: ignore[attr-defined]

    def draft(self) -> TokenTree:
        return TokenTree.chain([self.emitted[-1]])

    def measures(self, kept: int, stopped: bool) -> Any:
        return {f"after {token}": 1.0 for token in self.found}


class Cold(Diary):
    """The same without a state."""

    @staticmethod
    def state(options: Any) -> Any:
        return None

    def begin(self, prompt: Sequence[int]) -> None:
        Decoder.begin(self, prompt)
        self.found = []


def asked(*numbers: int, repeat: int = 0, budgets: Sequence[int] = (4,), turn: int = 1) -> list[Request]:
    """A request of each number, its prompt beginning with it; budgets in turn."""
    return [
        Request(
            f"p{number}", repeat, [number, 3, 4], StopRule(frozenset(), (), budgets[at % len(budgets)], str), turn=turn
        )
        for at, number in enumerate(numbers)
    ]


def found(records: Sequence[RequestRecord]) -> dict[str, list[int]]:
    """By prompt: whose requests each one came after."""
    return {record.prompt_id: [int(name.split()[1]) for name in record.measures] for record in records}


class Small(ByteTokenizer):
    """Of so few ids."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [byte % VOCAB for byte in text.encode()]}


@pytest.fixture
def model() -> Any:
    return decoders.loaded(models.tiny_llama(VOCAB), name="tiny", tokenizer=Small())


DIARY, BASELINE_ROW, COLD = (
    toy(label="diary", decoder=Diary),
    toy(label="diary#2", decoder=Diary),
    toy(label="c", decoder=Cold),
)


def open_session(model: Any, *methods: Any, slots: int = 1, **more: Any) -> Session:
    return Session(model, methods or (DIARY, BASELINE_ROW, COLD), capacity=48, slots=slots, **more)


def test_places_are_those_of_starting_and_not_of_ending_where_several_run_together(model: Any) -> None:
    with open_session(model, slots=3) as session:
        records = [*session.decode(DIARY, asked(5, 6, 7, 8, 9, budgets=(30, 4, 12)))]
    assert [record.prompt_id for record in records] != ["p5", "p6", "p7", "p8", "p9"], "a long one ends later"
    assert {record.prompt_id: record.place for record in records} == {f"p{n}": n - 4 for n in range(5, 10)}
    assert found(records) == {f"p{n}": list(range(5, n)) for n in range(5, 10)}


def test_a_cold_row_has_no_place_and_says_nothing_of_one(model: Any) -> None:
    with open_session(model) as session:
        (cold,) = session.decode(COLD, asked(5))
        (warm,) = session.decode(DIARY, asked(5))
    assert cold.place is None
    assert "place" not in cold.model_dump(mode="json")
    assert warm.model_dump(mode="json")["place"] == 1


def test_two_rows_of_one_method_learn_each_for_itself(model: Any) -> None:
    with open_session(model) as session:
        mine = [*session.decode(DIARY, asked(5, 6))]
        theirs = [*session.decode(BASELINE_ROW, asked(7, 8))]
        mine += session.decode(DIARY, asked(9))
    assert found(theirs) == {"p7": [], "p8": [7]}
    assert found(mine) == {"p5": [], "p6": [5], "p9": [5, 6]}
    assert [record.place for record in [*mine, *theirs]] == [1, 2, 3, 1, 2]


def test_a_row_begins_empty_at_each_repeat(model: Any) -> None:
    with open_session(model) as session:
        records = [
            *session.decode(DIARY, asked(5, 6)), *session.decode(DIARY, asked(5, 6, repeat=1)),
            *session.decode(DIARY, asked(7, repeat=1)),
        ]  # fmt: skip
    assert [(record.repeat, record.place) for record in records] == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    assert [list(found([record]).values()) for record in records] == [[[]], [[5]], [[]], [[5]], [[5, 6]]]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_row_begins_empty_after_the_warm_up(model: Any, slots: int) -> None:
    task = prepared([Prompt(f"p{n}", "x" * 8, False) for n in range(3)])
    with open_session(model, slots=slots) as session:
        warm = [*session.decode(DIARY, asked(8, 9))]
        session.warm_up(task)
        first = [*session.decode(DIARY, asked(5)), *session.decode(BASELINE_ROW, asked(6))]
    assert [record.place for record in warm] == [1, 2], "or there was nothing to forget"
    assert found(first) == {"p5": [], "p6": []}
    assert [record.place for record in first] == [1, 1]


def test_a_pair_keeps_what_each_of_its_halves_has_learnt(model: Any) -> None:
    settings = ["suffix.requests=9", "suffix.fallback=recycling warm=true budget=9"]
    with Session(model, plan_methods(["suffix"], settings), capacity=64) as session:
        (_, row) = session.methods
        records = [*session.decode(row, asked(7, 8, budgets=(20,)))]
        answers, matrix = session._context(row.label, asked(9)[0]).state
    assert [text.tokens[:20] for text in answers._texts.values()] == [record.output_ids for record in records]
    fed = {token for record in records for token in record.output_ids[:-1]}
    assert fed <= matrix.keys(), "every token of an answer was fed, but for its last one"
    assert [record.place for record in records] == [1, 2]


def test_what_a_warm_row_has_learnt_is_drafted_from(model: Any) -> None:
    """The same text again: a warm cache of answers has all of what follows it, and a cold one drafts as before."""
    with Session(model, plan_methods(["suffix", "suffix"], ["suffix#2.requests=5"]), capacity=64) as session:
        one, other = asked(5, 6, budgets=(24,))
        requests = [one, other, replace(one, prompt_id="again")]
        cold, warm = ([*session.decode(row, requests)] for row in session.methods[1:])
    assert [record.output_ids for record in warm] == [record.output_ids for record in cold]
    assert cold[0].accepted_lengths == cold[2].accepted_lengths == warm[0].accepted_lengths
    assert len(warm[2].accepted_lengths) < len(cold[2].accepted_lengths) - 5
    assert ["earlier" in known(record.tokens).words for record in (cold[2], warm[0], warm[2])] == [False, False, True]


def test_times_that_change_nothing_do_not_empty_a_row(model: Any) -> None:
    class Timed(Diary):
        @staticmethod
        def prepare(options: Any, target: Any) -> Any:
            return target.measured("steps", lambda: [(1, 0.1)], True)

    times = StoredTimes.model_validate({"times": [(1, 0.5)], "measured_utc": "2026-01-01T00:00:00+00:00"})
    with open_session(model, toy(label="diary", decoder=Timed)) as session:
        (row,) = session.methods
        records = [*session.decode(row, asked(5))]
        session.calibrate(dict(session.calibration.used))
        records += session.decode(session.methods[0], asked(6))
        assert found(records) == {"p5": [], "p6": [5]}, "nothing is prepared anew, and nothing is forgotten"
        session.calibrate({"steps": times})
        records += session.decode(session.methods[0], asked(7))
        assert session.methods[0].shared == [(1, 0.5)]
    assert [record.place for record in records] == [1, 2, 1], "it is another method from here on"


def answered(label: str, *prompts: int, repeat: int = 0) -> list[RequestRecord]:
    return [request_record(label, request) for request in asked(*prompts, repeat=repeat)]


def test_only_stateful_rows_that_stopped_in_a_repeat_begin_again() -> None:
    whole, begun, cold = answered("w", 1, 2, 3), answered("b", 1, 2), answered("c", 1, 2)
    again = answered("w", 1, repeat=1)
    records = [*whole, *begun, *cold, *again]
    assert broken_off(records, {"w", "b"}, 3) == {"b": begun, "w": again}
    assert broken_off(records, set(), 3) == {}
    assert broken_off(whole, {"w", "b"}, 3) == {}
    assert broken_off([], {"w", "b"}, 3) == {}


def test_every_turn_of_a_conversation_counts() -> None:
    task = prepared([Prompt("a", "one", True, follow_ups=("two", "three")), Prompt("b", "one", True)])
    assert task.spec.requests == 4
    order = Order(plan([DIARY]), task, {})
    records = []
    for method, requests in order.stretches():
        for request in requests:
            records.append(request_record(method.label, request))
            order.add(records[-1])
            stopped = broken_off(records, {"diary"}, task.spec.requests)
            assert stopped == ({} if len(records) == 4 else {"diary": records})
    assert len(records) == 4
