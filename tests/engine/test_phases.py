"""Where a step's time goes, on a clock that charges known costs for each phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support import decoders
from support.decoders import Clock, ToyEngine, request, runner, toy

from specbench.decoding.tree import StepResult, TokenTree
from specbench.engine import engine as real
from specbench.engine.phases import Phases
from specbench.models.loader import load
from specbench.results.request_schema import RequestRecord

S = 1_000_000_000


def test_a_phase_that_comes_twice_adds_up_and_one_that_never_comes_is_zero() -> None:
    clock = Clock()
    phases = Phases(clock, lambda: None)
    for phase, cost in (("forward", 5), ("draft", 2), ("forward", 6)):
        clock.now += cost
        phases.mark(phase)
    assert phases.spent == {"draft": 2, "build": 0, "forward": 11, "accept": 0, "commit": 0, "observe": 0}
    clock.now += 100  # after the last mark, so it belongs to no phase
    assert sum(phases.spent.values()) == 13


def test_what_the_device_has_left_to_do_belongs_to_the_phase_that_asked_for_it() -> None:
    clock, pending = Clock(), [9, 1]

    def settle() -> None:
        clock.now += pending.pop(0)

    phases = Phases(clock, settle)
    clock.now += 2  # the host hands the work over and goes on
    phases.mark("forward")
    clock.now += 3
    phases.mark("accept")
    assert (phases.spent["forward"], phases.spent["accept"]) == (11, 4)


# ------------------------------------------------------------------ in the records

COSTS = {"build": 2 * S, "accept": 3 * S, "commit": 5 * S}
DRAFT, OBSERVE, FIXED = 7 * S, 11 * S, 13 * S


def decoded(budgets: Sequence[int], *, concurrency: int = 1, trace: bool = True, pause: int = 0) -> list[RequestRecord]:
    """Records of a toy whose phases cost what the constants above say; the consumer takes ``pause`` for each."""
    clock = Clock()
    engine = ToyEngine(clock, slots=concurrency, fixed=FIXED)
    engine.costs = COSTS

    class Slow(decoders.Decoder):
        def draft(self) -> TokenTree:
            clock.now += DRAFT
            return super().draft()

        def observe(self, result: StepResult) -> None:
            clock.now += OBSERVE
            super().observe(result)

    records = []
    requests = [request(number, budget) for number, budget in enumerate(budgets, 1)]
    for record in runner(engine, concurrency, trace).segment(toy(4, (1,), decoder=Slow), requests):
        records.append(record)
        clock.now += pause
    assert trace or engine.settled == 0, "a run without trace never waits for the device between phases"
    return records


def test_each_step_of_a_request_is_split() -> None:
    (record,) = decoded([7])  # a token from the prefill, then two a step
    assert record.target_forwards == 3
    assert record.phases_s == {
        "draft": [7, 7, 7],
        "build": [2, 2, 2],
        "forward": [13, 13, 13],
        "accept": [3, 3, 3],
        "commit": [5, 5, 5],
        "observe": [11, 11, 11],
    }


def test_a_step_is_shared_out_evenly_over_its_sequences() -> None:
    # Both step together once; p02 then goes on alone. Drafting and observing cost once per sequence, the rest once.
    first, second = decoded([2, 5], concurrency=2)
    assert first.phases_s == {
        "draft": [7],
        "build": [1],
        "forward": [6.5],
        "accept": [1.5],
        "commit": [2.5],
        "observe": [11],
    }
    assert second.phases_s is not None
    assert second.phases_s == {
        phase: [spent[0], (2 if phase not in ("draft", "observe") else 1) * spent[0]]
        for phase, spent in first.phases_s.items()
    }


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_phases_add_up_to_a_requests_share_of_the_decoding(concurrency: int) -> None:
    for record in decoded([9, 2, 4, 17, 6], concurrency=concurrency):
        assert record.phases_s is not None
        assert {len(steps) for steps in record.phases_s.values()} == {record.target_forwards}
        assert sum(map(sum, record.phases_s.values())) == pytest.approx(record.decode_share_s)


def test_time_of_the_consumer_is_in_no_phase() -> None:
    assert decoded([3, 5, 2], concurrency=2) == decoded([3, 5, 2], concurrency=2, pause=1000 * S)


def test_without_trace_there_are_no_phases_and_the_times_are_the_same() -> None:
    plain, traced = decoded([7, 3], trace=False), decoded([7, 3])
    assert [record.phases_s for record in plain] == [None, None]
    for mine, its in zip(plain, traced, strict=True):
        assert mine.tokens
        assert its.tokens
        tokens = its.tokens.model_copy(update={"drafts": None, "pieces": None})
        assert mine == its.model_copy(update={"phases_s": None, "tokens": tokens})


# ------------------------------------------------------------------ the engine's marks


def test_the_engine_marks_its_phases_once_each_and_in_order() -> None:
    class Recorder(Phases):
        marks: list[str]

        def mark(self, phase: str) -> None:
            self.marks.append(phase)
            super().mark(phase)

    model = load("config:tiny")
    engine = real.Engine(model.model, capacity=32, max_rows=4)
    try:
        slot = engine.alloc()
        first = engine.prefill(slot, [5, 6, 7]).emitted[0]
        ticks: Any = iter(range(100))
        phases = Recorder(lambda: next(ticks), engine.settle)
        phases.marks = []
        engine.step({slot: TokenTree([first, 8, 9, 10], [-1, 0, 0, 2])}, phases=phases)
    finally:
        engine.close()
    assert phases.marks == ["build", "forward", "accept", "commit"]
    # The clock ticks once at each mark: every phase got its own.
    assert phases.spent == {"draft": 0, "build": 1, "forward": 1, "accept": 1, "commit": 1, "observe": 0}
