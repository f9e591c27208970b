"""CLLM's chains are Jacobi's; its two figures against worked trajectories and a plain rendering of their definition."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.decoders import Clock, ToyEngine, ToyTarget, decided, greedy, language, walk

from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import StepResult
from specbench.methods.cllm.decoder import Decoder, Options
from specbench.methods.jacobi import decoder as jacobi
from specbench.planning.methods import plan_methods
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule

VOCAB, PAD = 50, 49
PROMPT = [20, 21, 22, 20]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


def result(next_tokens: Sequence[int], matches: int) -> StepResult:
    return decided(next_tokens, range(matches + 1))


# ------------------------------------------------------------------ the two figures, by hand


def measured(n: int, *forwards: list[int], kept: int, stopped: bool = False) -> Mapping[str, float]:
    """Figures of an answer that begins with token 1, from what each forward says; guesses that it confirms count."""
    made = decoder(block_size=n, init="pad")
    made.begin(PROMPT)
    made.observe(result([1], 0))
    for outcome in forwards:
        chain = list(made.draft().tokens)
        matches = next((at for at, guess in enumerate(chain[1:]) if guess != outcome[at]), len(chain) - 1)
        made.observe(result(outcome, matches))
    return made.measures(kept, stopped)


def figure(fast_forwarded: float, stationary: int) -> dict[str, float]:
    return {"fast_forwarded": fast_forwarded, "stationary": stationary}


def test_worked_blocks() -> None:
    # n=6, three forwards; the third confirms 5 6 and adds no state. The block is 1 to 6 in 2 states: 3.0. Nothing was
    # right before its turn: 3 and 4 came with 2 in one go, 5 and 6 were wrong until theirs.
    three = [2, 3, 4, 11, 12, 30], [3, 4, 5, 6, 31], [6, 7]
    assert measured(6, *three, kept=7) == figure(3.0, 0)
    # Means over blocks: 1 2 3 in one state, and 4 5 8, 4 5 6 in two.
    assert measured(3, [2, 3, 9], [3, 4], [5, 8, 9], [6, 9], [7], kept=7) == figure(2.25, 0)
    # 4 is said after a wrong guess already, and again when its turn comes.
    assert measured(4, [2, 9, 4, 8], [3, 4, 8], [4, 5], kept=5) == figure(2.0, 1)
    # All guesses are right in the second forward. A stop as the third token of four leaves what is after it out.
    assert measured(4, [2, 3, 4, 5], [3, 4, 5], kept=3, stopped=True) == figure(3.0, 0)
    assert measured(4, [2, 3, 4, 5], [3, 4, 5], kept=5, stopped=True) == figure(4.0, 0)


# ------------------------------------------------------------------ against a plain rendering of their definition


def states_of(target: ToyTarget, out: Sequence[int], block: list[int]) -> list[list[int]]:
    """Jacobi iteration over the whole block until nothing changes; the guess it starts from is no state."""
    states: list[list[int]] = []
    while True:
        outcome = [target(PROMPT, [*out, *block[: at + 1]]) for at in range(len(block) - 1)]
        if states and [block[0], *outcome] == block:
            return states
        block = [block[0], *outcome]
        states.append(block)


def figures(states: Sequence[Sequence[int]], size: int) -> tuple[float, int]:
    """As the published evaluation counts them: gains of the correct prefix, and runs of right tokens at the end."""
    final = states[-1]
    frontier, gains, covered = 0, [], {}
    runs = [0] * len(final)
    for j, state in enumerate(states):
        before = frontier
        while frontier < size and state[frontier] == final[frontier]:
            covered[frontier] = j
            frontier += 1
        gains.append(frontier - before)
        runs = [run + 1 if token == right else 0 for run, token, right in zip(runs, state, final, strict=True)]
        if frontier == size:
            break
    count = sum(runs[at] > len(gains) - covered[at] for at in range(size))
    return mean(gains), count


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 60), st.booleans())
def test_figures_are_those_of_a_plain_rendering(n: int, seed: int, memory: int, kept: int, stopped: bool) -> None:
    target = language(seed, words=3, memory=memory, period=7)
    made = decoder(block_size=n, init="pad")
    committed = len(walk(made, target, PROMPT, kept).output) - 1  # the last one has not been through a forward
    text = greedy(target, PROMPT, 100)
    expected = []
    for start in range(0, kept, n):
        size = min(n, kept - start)
        whole = size == n and committed >= start + n
        if whole or (stopped and committed > start):
            states = states_of(target, text[:start], [text[start]] + [PAD] * (n - 1))
            assert states[-1] == text[start : start + n]
            expected.append(figures(states, size))
    got = made.measures(kept, stopped)
    if expected:
        assert got["fast_forwarded"] == pytest.approx(mean(value for value, _ in expected))
        assert got["stationary"] == pytest.approx(mean(count for _, count in expected))
    else:
        assert got == {}


# ------------------------------------------------------------------ what counts as a block


def decoded(budget: int, stop: int | None = None) -> RequestRecord:
    """Blocks of 4 on an answer 0 1 2 3 ... of which the model says a guess right only after right ones."""
    engine = ToyEngine(Clock())
    engine.target = lambda prompt, out: len(out) if list(out) == list(range(len(out))) else 40
    method = Method("cllm", "cllm", Options(block_size=4, init="pad"), True, Decoder)
    runner = Runner(engine, lambda label, request: Context(VOCAB, PAD, random.Random(0)), 1, engine.clock)
    rule = StopRule(frozenset() if stop is None else frozenset({stop}), (), budget, str)
    (record,) = runner.segment(method, [Request("p", 0, PROMPT, rule)])
    assert record.output_ids == list(range(record.output_tokens))
    return record


# A block of 4 goes one token a forward: 3 states, 4 / 3 a state; what a stop leaves of m tokens has m - 1 states.
@pytest.mark.parametrize(
    ("budget", "stop", "blocks"),
    [
        (9, None, [4 / 3, 4 / 3]),  # the ninth token shows that the second block is finished
        (11, None, [4 / 3, 4 / 3]),  # the third is cut by the budget, and left out
        (100, 10, [4 / 3, 4 / 3, 3 / 2]),  # tokens 8 9 10 of the third block
        (100, 8, [4 / 3, 4 / 3]),  # the stop is the bonus of the second block: nothing is run for a third
        (100, 0, []),  # the prefill's own token
    ],
)
def test_a_stop_cuts_its_block_and_the_budget_leaves_it_out(budget: int, stop: int | None, blocks: list[float]) -> None:
    measures = decoded(budget, stop).measures
    if blocks:
        assert measures == {"fast_forwarded": pytest.approx(mean(blocks)), "stationary": 0}
    else:
        assert measures == {}


# ------------------------------------------------------------------ the decoding is Jacobi's


@pytest.mark.parametrize("init", ["context", "uniform", "pad"])
@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_trees_are_those_of_jacobi(n: int, init: str) -> None:
    for seed in range(4):
        target = language(seed, words=6, memory=1, period=7)
        plain = jacobi.Options(block_size=n, init=init, prefill_draft=False)  # type: ignore[arg-type]
        mine = walk(decoder(seed, block_size=n, init=init), target, PROMPT, 70)
        theirs = walk(jacobi.Decoder(plain, Context(VOCAB, PAD, random.Random(seed))), target, PROMPT, 70)
        assert (mine.prefill, mine.drafts, mine.output) == (None, theirs.drafts, theirs.output)


def test_presets_are_the_best_block_sizes_of_table_3() -> None:
    for preset, n in {"gsm8k": 16, "spider": 16, "sharegpt": 32, "codesearchnet": 32}.items():
        assert plan_methods(["cllm"], [f"preset={preset}"])[1].max_rows == n
