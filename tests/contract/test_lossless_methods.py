"""Every method that says it is lossless emits what autoregressive decoding emits, token for token.

Real runner, real engine, one tiny random model per family. In float64: the property is the algorithm's, and with rounding
errors of 1e-16 no two scores are near enough for it to hide behind. test_smollm2.py asks the same in float32.
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
SAMPLED = [Sampling(temperature=t, seed=seed) for t in (0.7, 1.0) for seed in (0, 1)]
FILTERED = [Sampling(temperature=1.0, top_k=5, seed=2), Sampling(temperature=0.7, top_p=0.8, seed=3)]
SLOTS, BUDGET, LONGEST = 4, 24, 21

both = pytest.mark.parametrize("method", [pytest.param(m, id=name) for name, m in method_sets.LOSSLESS.items()])


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
    """A language that is easy to guess, so that whole blocks are accepted: its next token depends mostly on the position,
    greedily through large position embeddings, sampled through noise that is large beside the logits."""
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
    """Drafts branches of what AR wrote, cut at random and mixed with wrong rows: blocks of every length are accepted."""

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


# ------------------------------------------------------------------ the same tokens


@both
def test_greedy(family: Bench, method: Method) -> None:
    assert family.ids(method, GREEDY) == family.ids(AR, GREEDY)


@both
@pytest.mark.parametrize("sampling", SAMPLED, ids=lambda s: f"T={s.temperature} seed {s.seed}")
def test_sampled(family: Bench, method: Method, sampling: Sampling) -> None:
    assert family.ids(method, sampling) == family.ids(AR, sampling)


@both
@pytest.mark.parametrize("sampling", FILTERED, ids=["top-k", "top-p"])
def test_filtered(family: Bench, method: Method, sampling: Sampling) -> None:
    assert family.ids(method, sampling) == family.ids(AR, sampling)


def test_a_drafter_that_knows_the_answer(family: Bench) -> None:
    for sampling in (GREEDY, *SAMPLED, *FILTERED):
        tell(family, sampling, (BUDGET,) * 3)
        told = family.run(TOLD, sampling)
        assert {key: record.ids for key, record in told.items()} == family.ids(AR, sampling)
        assert max(max(record.accepts) for record in told.values()) > 3  # or no long path was ever committed


def test_seeds_and_temperatures_are_different_tests(family: Bench) -> None:
    outputs = [str(family.ids(AR, sampling)) for sampling in (GREEDY, *SAMPLED, *FILTERED)]
    assert len(set(outputs)) == len(outputs)


# ------------------------------------------------------------------ the same end


def ends(easy: tuple[Bench, Sampling], method: Method) -> tuple[Bench, Sampling, dict[str, RequestRecord]]:
    """The bench and AR's long answers; the teller knows them."""
    bench, sampling = easy
    budgets = (2 * BUDGET,) * 3
    tell(bench, sampling, budgets)
    return bench, sampling, bench.run(AR, sampling, budgets)


with_teller = pytest.mark.parametrize(
    "method", [pytest.param(m, id=name) for name, m in {**method_sets.LOSSLESS, "told": TOLD}.items()]
)


@with_teller
def test_whole_blocks_are_accepted(easy: tuple[Bench, Sampling], method: Method) -> None:
    # What the two tests below rest on: without it, no stop or budget would fall inside a block or on its bonus.
    bench, sampling = easy
    tell(bench, sampling, (BUDGET,) * 3)
    accepts = [count for record in bench.run(method, sampling).values() for count in record.accepts]
    assert max(accepts) == 1 if method.max_rows == 1 else max(accepts) >= 3


@with_teller
def test_a_stop_token_anywhere(easy: tuple[Bench, Sampling], method: Method) -> None:
    """Each token of the answer in turn is the stop token: inside a block, at its end, just behind it, and as bonus."""
    bench, sampling, long = ends(easy, method)
    where: set[tuple[str, int]] = set()
    for stop in {token for record in long.values() for token in record.ids[: 2 * min(method.max_rows, 8) + 4]}:
        budgets = (2 * BUDGET,) * 3
        ar, mine = (bench.run(m, sampling, budgets, stop_ids=[stop]) for m in (AR, method))
        for key, record in mine.items():
            assert (record.ids, record.stop_reason) == (ar[key].ids, ar[key].stop_reason)
            if record.stop_reason == "stop":
                assert record.ids.index(stop) == record.n_out - 1
                where.add(("inside" if record.n_overshoot else "last", min(record.forwards, 2)))
    assert {kind for kind, forwards in where if forwards} == ({"last"} if method.max_rows == 1 else {"inside", "last"})


@with_teller
def test_any_budget(easy: tuple[Bench, Sampling], method: Method) -> None:
    bench, sampling, long = ends(easy, method)
    overshoot = 0
    for budget in range(1, 2 * min(method.max_rows, 8) + 4):
        mine = bench.run(method, sampling, (budget,) * 3)
        for key, record in mine.items():
            assert record.ids == long[key].ids[:budget]
            assert record.stop_reason == "length"
            overshoot += record.n_overshoot
    assert (overshoot > 0) == (method.max_rows > 1)


# ------------------------------------------------------------------ the same company or none

# More requests than slots, of unlike prompts and lengths: they enter and leave at different times.
BUDGETS = (24, 3, 17, 1, 9, 24, 2, 12, 20)


@both
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[-1]], ids=["greedy", "sampled"])
def test_four_at_a_time_as_alone(family: Bench, method: Method, sampling: Sampling) -> None:
    alone, together = (family.run(method, sampling, BUDGETS, concurrency=c) for c in (1, SLOTS))
    for key, record in alone.items():
        assert together[key].ids == record.ids
        assert together[key].accepts == record.accepts  # the drafts do not depend on the company either
        assert together[key].rows == record.rows


def test_ar_four_at_a_time_as_alone(family: Bench) -> None:
    for sampling in (GREEDY, *SAMPLED, *FILTERED):
        alone, together = (family.ids(AR, sampling, budgets=BUDGETS, concurrency=c) for c in (1, SLOTS))
        assert together == alone


def test_a_slot_remembers_nothing_of_its_last_sequence(family: Bench) -> None:
    first = family.ids(AR, GREEDY, budgets=(BUDGET,) * 5)
    again = family.ids(AR, GREEDY, budgets=(BUDGET,) * 5)
    assert first == again
