"""Where accepted drafts could go wrong: stops and budgets inside a block, sequences beside it, trees of any shape.

test_equals_ar.py asks for the same tokens on real drafts, of which random weights reject most. Here they are accepted:
in a language that any method guesses, and by a drafter that is told the answer. In float64: the property is the
algorithm's, and with rounding errors of 1e-16 no two scores are near enough for it to hide behind.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import method_sets
import models_tiny
import pytest
import torch

from specbench.decoding import Context, Method
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.engine.tree import StepResult, TokenTree
from specbench.options import Options
from specbench.records import RequestRecord
from specbench.runner import Request, Runner
from specbench.stopping import StopRule

AR = method_sets.with_options("ar", {})
GREEDY = Sampling()
SAMPLED = [
    Sampling(0.7, seed=0),
    Sampling(1.0, seed=1),
    Sampling(1.0, top_k=5, seed=2),
    Sampling(0.7, top_p=0.8, seed=3),
]
SLOTS, BUDGET, LONGEST = 4, 24, 21


def double(model: Any) -> Any:
    """A copy in float64."""
    twin = copy.deepcopy(model).double()
    if hasattr(twin.config, "num_local_experts"):
        twin.set_experts_implementation("eager")  # the fused kernel takes no float64
    return twin


@dataclass
class Bench:
    """An engine with everything needed to run a method on it."""

    engine: Engine
    vocab: int

    def prompt(self, number: int) -> list[int]:
        """Prompt ``number``, of 1 to 21 tokens."""
        return models_tiny.prompt((1, 5, LONGEST, 2, 13)[number % 5], self.vocab, seed=number)

    def run(
        self,
        method: Method,
        sampling: Sampling,
        budgets: Sequence[int] = (BUDGET,) * 3,
        stop_ids: Sequence[int] = (),
        concurrency: int = 1,
    ) -> dict[str, RequestRecord]:
        """Decodes prompts 0, 1, … with these budgets."""
        self.engine.sampling = sampling
        requests = [
            Request(f"p{n}", 0, self.prompt(n), StopRule(frozenset(stop_ids), (), budget, str))
            for n, budget in enumerate(budgets)
        ]

        def context(label: str, request: Request) -> Context:
            return Context(self.vocab, 0, random.Random(f"{sampling.seed}/{request.prompt_id}"))

        records = Runner(self.engine, context, concurrency).segment(method, requests)
        found = {record.prompt_id: record for record in records}
        assert len(found) == len(requests)
        for record in found.values():
            assert record.n_out == 1 + sum(record.accepts) == len(record.ids)
        return found

    def ids(self, method: Method, sampling: Sampling, **how: Any) -> dict[str, list[int]]:
        return {key: record.ids for key, record in self.run(method, sampling, **how).items()}


def bench(model: Any) -> Iterator[Bench]:
    # Room for the widest tree behind the longest answer: an overshoot is written there.
    rows = max([TOLD.max_rows, *(method.max_rows for method in method_sets.LOSSLESS.values())])
    with models_tiny.attached(model, slots=SLOTS, capacity=LONGEST + 2 * BUDGET, max_rows=rows) as engine:
        yield Bench(engine, model.get_output_embeddings().weight.shape[0])


@pytest.fixture(scope="module", params=models_tiny.SUPPORTED)
def family(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Each family that the engine runs. Their random weights make most guesses wrong."""
    yield from bench(double(models_tiny.supported(request.param)))


@pytest.fixture(scope="module", params=["greedy", "sampled"])
def easy(request: pytest.FixtureRequest) -> Iterator[tuple[Bench, Sampling]]:
    """A language that is easy to guess: its next token depends mostly on the position.

    Greedily through large position embeddings, sampled through noise that is large beside the logits.
    """
    model = double(models_tiny.supported("gpt2" if request.param == "greedy" else "llama"))
    with torch.no_grad():
        if request.param == "greedy":
            model.transformer.wpe.weight *= 4
        else:
            model.get_output_embeddings().weight *= 0.05
    for made in bench(model):
        yield made, GREEDY if request.param == "greedy" else Sampling(temperature=1.0, seed=4)


# ------------------------------------------------------------------ a drafter that is told the answer


class Told(Options):
    rows: int = 9


class Teller:
    """Drafts what AR wrote, as branches of any shape mixed with wrong rows: paths of every length are accepted."""

    draft_forwards = 0
    answers: dict[tuple[int, ...], list[int]] = {}  # noqa: RUF012 -- set by the tests

    def __init__(self, options: Told, context: Context) -> None:
        self.options, self.context = options, context
        self.answer: list[int] = []
        self.out: list[int] = []

    @staticmethod
    def max_rows(options: Told) -> int:
        return options.rows

    def begin(self, prompt: Sequence[int]) -> None:
        self.answer = self.answers[tuple(prompt)]

    def observe(self, result: StepResult) -> None:
        self.out += result.emitted

    def draft(self) -> TokenTree:
        rng, at = self.context.rng, len(self.out)
        tokens, parents, path = [self.out[-1]], [-1], [0]  # path: rows that hold the right answer so far
        while len(tokens) < self.options.rows:
            step = at + len(path) - 1
            if rng.random() < 0.7 and step < len(self.answer):
                parents.append(path[-1])
                tokens.append(self.answer[step])
                path.append(len(tokens) - 1)
            else:
                parents.append(rng.randrange(len(tokens)))
                tokens.append(rng.randrange(self.context.vocab_size))
        return TokenTree(tokens, parents)


TOLD = Method("told", "told", Told(), True, Teller)


def tell(bench: Bench, sampling: Sampling, budgets: Sequence[int]) -> None:
    """Lets the teller know the answers to these requests, and what comes behind them."""
    long = bench.ids(AR, sampling, budgets=[BUDGET + TOLD.max_rows for _ in budgets])
    Teller.answers = {tuple(bench.prompt(n)): long[f"p{n}"] for n in range(len(budgets))}


with_teller = pytest.mark.parametrize(
    "method", [pytest.param(m, id=name) for name, m in {**method_sets.LOSSLESS, "told": TOLD}.items()]
)


def test_any_tree_of_guesses_is_ar(family: Bench) -> None:
    for sampling in (GREEDY, *SAMPLED):
        tell(family, sampling, (BUDGET,) * 3)
        told = family.run(TOLD, sampling)
        assert {key: record.ids for key, record in told.items()} == family.ids(AR, sampling)
        assert max(max(record.accepts) for record in told.values()) > 3  # or no long path was ever committed


def test_samplings_are_different_tests(family: Bench) -> None:
    outputs = [str(family.ids(AR, sampling)) for sampling in (GREEDY, *SAMPLED)]
    assert len(set(outputs)) == len(outputs)


# ------------------------------------------------------------------ the same end


def span(method: Method) -> int:
    """Two blocks and a bit of a method, or of its first eight rows: every place a stop can have in a block."""
    return 2 * min(method.max_rows, 8) + 3


def answer(easy: tuple[Bench, Sampling]) -> tuple[Bench, Sampling, list[int]]:
    """AR's answer to prompt 0; the teller knows it."""
    bench, sampling = easy
    tell(bench, sampling, (BUDGET,))
    return bench, sampling, bench.ids(AR, sampling, budgets=(BUDGET,))["p0"]


@with_teller
def test_a_stop_token_anywhere(easy: tuple[Bench, Sampling], method: Method) -> None:
    """Each token of the answer in turn is the stop token: inside a block, at its end, just behind it, and as bonus."""
    bench, sampling, ar = answer(easy)
    inside = last = 0
    for stop in dict.fromkeys(ar[: span(method)]):
        record = bench.run(method, sampling, (BUDGET,), stop_ids=[stop])["p0"]
        assert record.ids == ar[: ar.index(stop) + 1]
        assert record.stop_reason == "stop"
        inside += record.n_overshoot > 0
        last += record.n_overshoot == 0 and record.accepts[-1:] > [1]  # the bonus of a step that accepted something
    if method.max_rows > 1:
        assert inside, "no stop token had accepted tokens behind it"
        assert last, "no stop token was a bonus"


@with_teller
def test_any_budget(easy: tuple[Bench, Sampling], method: Method) -> None:
    bench, sampling, ar = answer(easy)
    overshoot = 0
    for budget in range(1, span(method) + 1):
        record = bench.run(method, sampling, (budget,))["p0"]
        assert record.ids == ar[:budget]
        assert record.stop_reason == "length"
        overshoot += record.n_overshoot
    assert (overshoot > 0) == (method.max_rows > 1)  # or no budget ended inside a block


# ------------------------------------------------------------------ the same company or none

# More requests than slots, of unlike prompts and lengths: they enter and leave at different times.
BUDGETS = (24, 3, 17, 1, 9, 24, 2, 12, 20)


@with_teller
def test_four_at_a_time_as_alone(easy: tuple[Bench, Sampling], method: Method) -> None:
    # Not the tokens only: drafts and their acceptance do not depend on the company either.
    bench, sampling = easy
    tell(bench, sampling, BUDGETS)
    alone, together = (bench.run(method, sampling, BUDGETS, concurrency=c) for c in (1, SLOTS))
    for key, record in alone.items():
        assert together[key].ids == record.ids
        assert together[key].accepts == record.accepts
        assert together[key].rows == record.rows
