"""Kept prefixes: a conversation's turns are decoded in one slot, and nothing but the prefill gets shorter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support import decoders, models
from support.decoders import Clock, ToyEngine, toy
from support.models import plan, prepared
from support.wording import wording

from specbench.common.errors import PluginFault, UsageError
from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Context, Method
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.order import Order, keep_prefixes
from specbench.runner.record import Request
from specbench.runner.setup.request_state import cut_conversations
from specbench.runner.stop import StopRule

BUDGET, TURNS = 10, 4
S = 1_000_000_000


def conversations(count: int, vocab: int) -> list[Request]:
    """Prompts that grow from turn to turn; the second one's third turn has other ids from its middle on."""
    found = []
    for name in range(count):
        ids: list[int] = []
        for turn in range(1, TURNS + 1):
            ids = [*ids, *models.prompt(3 + (5 * name + 3 * turn) % 7, vocab, 31 * name + turn)]
            if (name, turn) == (1, 3):
                ids = [*ids[:6], *models.prompt(9, vocab, 99)]
            found.append(Request(f"p{name}", 0, ids, StopRule(frozenset(), (), BUDGET, str), turn))
    return found


def test_the_shared_ids_are_counted_from_the_ids() -> None:
    rule = StopRule(frozenset(), (), 1, str)
    asked = [("a", [1, 2, 3]), ("a", [1, 2, 3, 4]), ("a", [1, 2]), ("a", [1, 2]), ("a", [9, 2]), ("b", [9, 2, 3])]
    turns = [Request(name, 0, ids, rule, turn) for turn, (name, ids) in enumerate(asked, 1)]
    assert [request.prefix for request in keep_prefixes(turns)] == [0, 3, 1, 1, 0, 0]


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Any:
    family, temperature = request.param
    with models.attached(models.supported(family), slots=3, capacity=200, max_rows=512) as made:
        made.sampling = Sampling(temperature, seed=5)
        yield made


def run(engine: Engine, method: Method, requests: Sequence[Request], together: int) -> dict[Any, RequestRecord]:
    method = decoders.ready(method, engine)
    state = method.new_state()

    def context(label: str, request: Request) -> Context:
        return Context(97, 0, random.Random(f"{request.prompt_id}/{request.turn}"), state=state)

    found = Runner(engine, context, together, trace=True).segment(method, requests)
    return {(record.prompt_id, record.turn): record for record in found}


# Full attention, and layers with a sliding window shorter than the prompts; each method has one, the other two
# are slow.
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(way, name, id=f"{way[0]}-{way[1]}-{name}", marks=[pytest.mark.slow] * ((at + turn) % 3 > 0))
        for turn, way in enumerate([("llama", 0.0), ("llama", 0.8), ("gemma3", 0.0)])
        for at, name in enumerate(sorted(decoders.lossless(decoders.DEFAULTS)))
    ],
    indirect=["engine"],
)
def test_kept_prefixes_change_no_answer_and_no_draft(engine: Engine, name: str) -> None:
    method, requests = decoders.DEFAULTS[name], conversations(3, 97)
    whole, kept = run(engine, method, requests, 1), run(engine, method, keep_prefixes(requests), 1)
    together = run(engine, method, keep_prefixes(requests), 3)
    assert len(whole) == len(kept) == len(together) == len(requests)
    for request in requests:
        key = request.prompt_id, request.turn
        assert kept[key].output_ids == together[key].output_ids == whole[key].output_ids, key
        assert whole[key].prefix_tokens == 0
        assert (kept[key].prefix_tokens > 0) == (request.turn > 1), key
        traced, expected = kept[key].tokens, whole[key].tokens
        assert traced
        assert expected
        # Equal drafts show that a draft head has read the same hidden states.
        drafts, wanted = traced.drafts or [], expected.drafts or []
        assert [(draft.ids, draft.parents) for draft in drafts] == [(draft.ids, draft.parents) for draft in wanted], key
    assert [engine.alloc() for _ in range(3)] == [0, 1, 2]  # no slot is left occupied
    for slot in range(3):
        engine.free(slot)


def toy_requests(turns: int = 3) -> list[Request]:
    """Two conversations; each turn adds two tokens."""
    rule = StopRule(frozenset(), (), 4, str)
    return [
        Request(f"p{name}", 0, [name, *range(7, 7 + 2 * turn)], rule, turn)
        for name in (1, 2)
        for turn in range(1, 1 + turns)
    ]


def test_only_new_tokens_take_time_to_the_first_token() -> None:
    requests = keep_prefixes(toy_requests())
    records = list(decoders.runner(ToyEngine(Clock(), per_row=S)).segment(toy(label="ar"), requests))
    assert [(record.prompt_id, record.turn) for record in records] == [(r.prompt_id, r.turn) for r in requests]
    assert [record.prefix_tokens for record in records] == [0, 3, 5] * 2
    assert [record.prompt_tokens for record in records] == [3, 5, 7] * 2
    assert [record.ttft_s for record in records] == pytest.approx([3, 2, 2] * 2)


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("taken", range(7))
def test_stopping_early_leaves_no_slot_occupied(together: int, taken: int) -> None:
    engine = ToyEngine(Clock(), slots=3)
    going = decoders.runner(engine, together).segment(toy(4, (3,)), keep_prefixes(toy_requests()))
    for _ in range(taken):
        next(going)
    going.close()
    assert engine.occupied == 0


def test_a_fault_in_a_later_turn_frees_the_slots() -> None:
    class Broken(decoders.Decoder):
        def begin(self, prompt: Sequence[int]) -> Any:
            assert len(prompt) < 7
            return super().begin(prompt)

    engine = ToyEngine(Clock(), slots=2)
    with pytest.raises(PluginFault):
        list(decoders.runner(engine, 2).segment(toy(2, decoder=Broken), keep_prefixes(toy_requests())))
    assert engine.occupied == 0


RECORDED = [
    Prompt(
        "p0", "one", True, recorded=(Prompt("p0, turn 2", "one two", True), Prompt("p0, turn 3", "one two 3", True))
    ),
    Prompt("p1", "uno", True, recorded=(Prompt("p1, turn 2", "uno due", True),)),
]


def test_a_method_decodes_all_turns_without_interruption() -> None:
    made = plan([toy(label="ar"), toy(label="mine")], keep_prefix=True, concurrency=2)
    order = Order(made, prepared(RECORDED, keep_prefix=True), {})
    segments = [(m.label, [(r.prompt_id, r.turn, r.prefix > 0) for r in requests]) for m, requests in order.stretches()]
    turns = [("p0", 1, False), ("p0", 2, True), ("p0", 3, True), ("p1", 1, False), ("p1", 2, True)]
    assert sorted(segments) == [("ar", turns), ("mine", turns)]


@pytest.mark.parametrize("prompts", [[Prompt("p", "one", True)], [Prompt("p", "one", True, follow_ups=("two",))]])
def test_tasks_without_recorded_turns_are_refused(prompts: list[Prompt]) -> None:
    with pytest.raises(UsageError, match="--keep-prefix", check=wording):
        prepared(prompts, keep_prefix=True)


def test_a_conversation_cut_short_starts_again() -> None:
    record = models.request_record("ar", toy_requests()[0])
    turns = [record.model_copy(update={"turn": turn, "prompt_id": name}) for name in "ab" for turn in (1, 2)]
    found = cut_conversations(turns, {"a": 3, "b": 2}, ())
    assert [(label, [r.prompt_id for r in theirs]) for label, theirs in found.items()] == [("ar", ["a", "a"])]
    assert cut_conversations(turns, {"a": 3, "b": 2}, {"ar"}) == {}
