"""CLLM's chains are Jacobi's; its two figures against worked trajectories and a plain rendering of their definition."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Clock, Engine, Target, greedy, language, walk

from specbench.common import registry
from specbench.common.errors import UsageError
from specbench.decoding.convergence import fast_forwarded, settled, stationary
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import StepResult
from specbench.methods.cllm.decoder import Decoder, Options
from specbench.methods.jacobi import decoder as jacobi
from specbench.results.schema import RequestRecord
from specbench.runner.loop import Request, Runner
from specbench.runner.methods import plan_methods
from specbench.runner.stop import StopRule

VOCAB, PAD = 50, 49
a, b, c, d, e, f, g, q, r = range(9)
PROMPT = [20, 21, 22, 20]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    return Decoder(Options(**options), Context(VOCAB, PAD, random.Random(seed)))


def result(next_tokens: Sequence[int], matches: int) -> StepResult:
    return StepResult(list(next_tokens[: matches + 1]), list(range(matches + 1)), list(next_tokens))


# ------------------------------------------------------------------ the two figures, by hand


def test_the_worked_block_takes_two_states() -> None:
    # n=6, three forwards; the third confirms e f and adds no state. The block is a b c d e f in 2 states: 3.0.
    made = decoder(block_size=6, init="pad")
    made.begin(PROMPT)
    made.observe(result([a], 0))
    made.observe(result([b, c, d, q, r, 30], 0))  # a is committed: the state is a b c d q r
    made.observe(result([c, d, e, f, 31], 2))  # b c d are: a b c d e f
    made.observe(result([f, g], 1))
    # Nothing was right before its turn: c and d came with b in one go, e and f were wrong until theirs.
    assert made.measures(7, False) == {"fast_forwarded": 3.0, "stationary": 0}


@pytest.mark.parametrize("n", [2, 5, 16])
def test_plain_autoregression_gives_n_over_n_minus_1(n: int) -> None:
    # State j has j+1 right tokens: the first one is known beforehand, each forward adds one.
    states = [[1] * (j + 1) + [0] * (n - j - 1) for j in range(1, n)]
    assert fast_forwarded(states) == n / (n - 1)
    assert stationary(states) == 0


FINAL = [1, 2, 3, 4, 5, 6]


def test_tokens_that_were_right_before_their_turn_are_stationary() -> None:
    # The correct prefix has 2, then 4, then 6 tokens. 4 and 6 were right before it came, 3 and 5 only with it.
    states = [[1, 2, 9, 4, 9, 6], [1, 2, 3, 4, 9, 6], FINAL]
    assert stationary(states) == 2
    assert fast_forwarded(states) == 2


def test_a_token_that_broke_again_is_not_stationary() -> None:
    assert stationary([[1, 2, 9, 4, 9, 6], [1, 2, 3, 4, 9, 8], FINAL]) == 1
    # It came back before its turn, so it was right when the prefix reached it.
    assert stationary([[1, 2, 9, 9, 9, 6], [1, 2, 9, 9, 9, 8], [1, 2, 3, 9, 9, 6], FINAL]) == 1


def test_a_state_that_is_right_at_once_leaves_nothing_to_be_stationary() -> None:
    assert stationary([FINAL]) == 0
    assert fast_forwarded([FINAL]) == 6


def test_states_behind_the_first_fixed_point_do_not_count() -> None:
    states = [[1, 2, 9], [1, 2, 3], [1, 2, 3]]
    assert settled(states) == states[:2]
    assert settled([[1, 2, 3]]) == [[1, 2, 3]]


# ------------------------------------------------------------------ against a plain rendering of their definition


def states_of(target: Target, out: Sequence[int], block: list[int]) -> list[list[int]]:
    """Jacobi iteration over the whole block until nothing changes; the guess it starts from is no state."""
    states: list[list[int]] = []
    while True:
        said = [target(PROMPT, [*out, *block[: at + 1]]) for at in range(len(block) - 1)]
        if states and [block[0], *said] == block:
            return states
        block = [block[0], *said]
        states.append(block)


def figures(states: Sequence[Sequence[int]], size: int) -> tuple[float, int]:
    """As the published evaluation counts them: gains of the correct prefix, and runs of right tokens at the end.

    ``size``: tokens up to the end of the text; the walk stops where the correct prefix has reached it.
    """
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


def test_the_rendering_sees_all_that_can_happen() -> None:
    # The property above is worth what its languages bring: early tokens that stay, and blocks of several states.
    values = []
    for seed in range(20):
        target = language(seed, words=3, memory=seed % 4, period=7)
        text = greedy(target, PROMPT, 9)
        values.append(figures(states_of(target, [], [text[0]] + [PAD] * 8), 9))
    assert len({value for value, _ in values}) > 3
    assert max(count for _, count in values) > 1


# ------------------------------------------------------------------ what counts as a block


def decoded(budget: int, stop: int | None = None) -> RequestRecord:
    """Blocks of 4 on an answer 0 1 2 3 ... of which the model says a guess right only behind right ones."""
    engine = Engine(Clock())
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
        (3, None, []),
        (100, 10, [4 / 3, 4 / 3, 3 / 2]),  # tokens 8 9 10 of the third block
        (100, 9, [4 / 3, 4 / 3, 2 / 1]),
        (100, 2, [3 / 2]),
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


def test_tokens_behind_the_stop_are_no_part_of_its_block() -> None:
    # All guesses are right in the second forward; the stop is the third token of four, the second state has them all.
    made = decoder(block_size=4, init="pad")
    made.begin(PROMPT)
    made.observe(result([1], 0))
    made.observe(result([2, 3, 4, 5], 0))  # 1 2 3 4
    made.observe(result([3, 4, 5], 2))
    assert made.measures(3, True) == {"fast_forwarded": 3.0, "stationary": 0}
    assert made.measures(5, True) == {"fast_forwarded": 4.0, "stationary": 0}


def test_figures_are_means_over_blocks() -> None:
    made = decoder(block_size=3, init="pad")
    made.begin(PROMPT)
    made.observe(result([1], 0))
    made.observe(result([2, 3, 9], 0))  # 1 2 3, one state: 3.0
    made.observe(result([3, 4], 1))
    made.observe(result([5, 8, 9], 0))  # 4 5 8
    made.observe(result([6, 9], 0))  # 4 5 6, the second state: 1.5
    made.observe(result([7], 0))
    assert made.measures(7, False) == {"fast_forwarded": 2.25, "stationary": 0}


def test_a_token_that_was_right_early_is_counted_in_a_decoded_block() -> None:
    # 4 is said behind a wrong guess already, and again when its turn comes.
    made = decoder(block_size=4, init="pad")
    made.begin(PROMPT)
    made.observe(result([1], 0))
    made.observe(result([2, 9, 4, 8], 0))  # 1 2 9 4
    made.observe(result([3, 4, 8], 0))  # 1 2 3 4
    made.observe(result([4, 5], 1))
    assert made.measures(5, False) == {"fast_forwarded": 2.0, "stationary": 1}


def test_the_figures_are_those_that_the_method_announces() -> None:
    assert set(registry.method("cllm").info["measures"]) == {"fast_forwarded", "stationary"}


# ------------------------------------------------------------------ the decoding is Jacobi's


@pytest.mark.parametrize("init", ["context", "uniform", "pad"])
@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_trees_are_those_of_jacobi(n: int, init: str) -> None:
    for seed in range(4):
        target = language(seed, words=6, memory=1, period=7)
        plain = jacobi.Options(block_size=n, init=init, prefill_draft=False)  # type: ignore[arg-type]
        mine = walk(decoder(seed, block_size=n, init=init), target, PROMPT, 70)
        theirs = walk(jacobi.Decoder(plain, Context(VOCAB, PAD, random.Random(seed))), target, PROMPT, 70)
        assert mine.prefill is theirs.prefill is None
        assert mine.drafts == theirs.drafts
        assert mine.output == theirs.output


@pytest.mark.parametrize(("preset", "n"), [("gsm8k", 16), ("spider", 16), ("sharegpt", 32), ("codesearchnet", 32)])
def test_presets_are_the_best_block_sizes_of_table_3(preset: str, n: int) -> None:
    assert plan_methods(["cllm"], [f"preset={preset}"])[1].max_rows == n


@pytest.mark.parametrize("setting", ["n=0", "n=513", "init=noise"])
def test_options_that_are_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="option"):
        plan_methods(["cllm"], [setting])
