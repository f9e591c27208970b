"""The contract of every method that says it is lossless: it emits what AR emits, token for token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from models_tiny import SUPPORTED, attached, prompt, supported

from specbench import registry
from specbench.decoding import Context, Method
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.options import parse
from specbench.runner import Request, Runner
from specbench.stopping import StopRule

BLOCK = 5
# Settings that are tried beside the defaults; a method that is not named here is tried with its defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "jacobi": [
        {"n": BLOCK},
        {"n": BLOCK, "window": "sliding", "init": "uniform"},
        {"n": BLOCK, "init": "pad", "prefill_draft": True},
        {"n": 1},
    ]
}
LOSSLESS = [name for name, card in registry.methods().items() if card.info["lossless"]]
CASES = [(name, raw) for name in LOSSLESS for raw in [{}, *SETTINGS.get(name, [])]]
SAMPLINGS = [
    Sampling(),
    Sampling(0.7, seed=1),
    Sampling(1.0, seed=2),
    Sampling(1.0, top_k=20, top_p=0.9, seed=3),
]


def method(name: str, raw: dict[str, Any]) -> Method:
    module = registry.method(name).load()
    return Method(name, name, parse(module.Options, raw, name), True, module.Decoder)


def rule(budget: int, stops: Sequence[int] = ()) -> StopRule:
    return StopRule(frozenset(stops), (), budget, lambda ids: "")


class Foresight(random.Random):
    """Draws that are mostly AR's own continuation, so that drafts are accepted: some blocks whole, some in part."""

    def __init__(self, length: int, answer: Sequence[int], wrong: float) -> None:
        super().__init__(0)
        self.length, self.answer, self.wrong = length, answer, wrong

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        at = len(population) - self.length
        known = [*self.answer[at : at + k], *[0] * k][:k]
        return [0 if self.random() < self.wrong else token for token in known]


def decode(
    engine: Engine, name: str, raw: dict[str, Any], requests: list[Request], at_a_time: int = 1, rng: Any = None
) -> dict[str, Any]:
    vocab = engine.model.get_output_embeddings().weight.shape[0]
    runner = Runner(engine, lambda label, r: Context(vocab, 0, rng or random.Random(r.prompt_id)), at_a_time)
    return {record.prompt_id: record for record in runner.segment(method(name, raw), requests)}


@pytest.fixture(params=SAMPLINGS, ids=lambda s: f"T{s.temperature}k{s.top_k}")
def sampling(request: pytest.FixtureRequest) -> Sampling:
    chosen: Sampling = request.param
    return chosen


@pytest.mark.parametrize("family", SUPPORTED)
def test_every_family_alone_and_in_company(family: str, sampling: Sampling) -> None:
    with attached(supported(family), capacity=80, max_rows=64, slots=4, sampling=sampling) as engine:
        vocab = engine.model.get_output_embeddings().weight.shape[0]
        requests = [
            Request(str(length), 0, prompt(length, vocab, seed=length), rule(budget))
            for length, budget in [(1, 14), (9, 5), (17, 22), (4, 1), (12, 9), (3, 17)]
        ]
        expected = {key: record.ids for key, record in decode(engine, "ar", {}, requests).items()}
        for name, raw in CASES:
            for at_a_time in (1, 4):
                got = decode(engine, name, raw, requests, at_a_time)
                assert {key: record.ids for key, record in got.items()} == expected, (name, raw, at_a_time)


@pytest.mark.parametrize("wrong", [0.0, 0.2])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_stops_and_budgets_at_every_offset_of_a_block(family: str, wrong: float, sampling: Sampling) -> None:
    """The stop token at every place of two blocks: before, on and behind their edge, inside, and as bonus."""
    with attached(supported(family), capacity=80, max_rows=64, sampling=sampling) as engine:
        ids = prompt(11, engine.model.get_output_embeddings().weight.shape[0], seed=5)
        span = 2 * BLOCK + 3
        free = decode(engine, "ar", {}, [Request("p", 0, ids, rule(span))])["p"].ids
        whole_blocks = 0
        for name, raw in CASES:
            for at in range(1, span + 1):
                stop = free[at - 1]
                for limits in (rule(span, [stop]), rule(at)):
                    expected = free[: free.index(stop) + 1] if limits.stop_ids else free[:at]
                    rng = Foresight(len(ids), free, wrong)
                    record = decode(engine, name, raw, [Request("p", 0, ids, limits)], rng=rng)["p"]
                    assert record.ids == expected, (name, raw, at, limits.stop_ids)
                    assert record.stop_reason == ("stop" if limits.stop_ids else "length")
                    whole_blocks += BLOCK in record.accepts
        assert whole_blocks, "no block was accepted whole, so no bonus was ever a stop"


def test_drafts_that_are_right_save_forwards() -> None:
    """The identity of this file must not hold because nothing is ever accepted."""
    with attached(supported("llama"), capacity=80, max_rows=64) as engine:
        ids = prompt(6, 97, seed=8)
        free = decode(engine, "ar", {}, [Request("p", 0, ids, rule(21))])["p"]
        record = decode(
            engine, "jacobi", {"n": BLOCK}, [Request("p", 0, ids, rule(21))], rng=Foresight(6, free.ids, 0.0)
        )["p"]
        assert free.forwards == 20
        assert record.forwards == 4  # the prefill's token, then four blocks of five
        assert record.accepts == [5, 5, 5, 5]
