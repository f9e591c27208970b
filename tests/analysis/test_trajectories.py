"""Trajectories: worked by hand, against a plain rendering on random trees, and against CLLM's own two figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import oracles, runs
from support.decoders import Clock, ToyEngine, ToyTarget, language, random_tree
from support.wording import wording

from specbench.analysis.tracing.trajectories import MARKS, Trajectory, trajectory
from specbench.common import UsageError
from specbench.decoding.protocol import Context, Method
from specbench.decoding.tree import TokenTree
from specbench.methods.cllm.decoder import Decoder, Options
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.stop import StopRule


def decode(ids: Sequence[int]) -> str:
    return "".join(f" {i}" for i in ids)


def marks(found: Trajectory) -> list[str]:
    """Of each state the marks' first letters, in place; a dot where nothing was fed."""
    lines = []
    for state in found.states:
        cells = {cell.position: cell.mark[0] for cell in state.cells}
        lines.append("".join(cells.get(at, ".") for at in range(len(found.ids))))
    return lines


def guess(*tokens: int, noise: int = 0) -> TokenTree:
    return TokenTree.chain(tokens, origins=["guess"] * (len(tokens) - noise) + ["noise"] * noise)


def test_a_worked_chain() -> None:
    # Answer 10 .. 19. 13 is right from the second state on and kept: stationary. 15 is right in the first and lost
    # again; in the second state 16 is right, but drawn at random. 17 18 19 stand two places too early in the third.
    steps = [
        (guess(10, 5, 5, 5, 5, 15), [0], 11),
        (guess(11, 5, 13, 5, 5, 16, noise=1), [0], 12),
        (guess(12, 13, 5, 17, 18, 19, 16), [0, 1], 14),
        (guess(14, 15, 16, 17), [0, 1, 2, 3], 18),
        (guess(18, 5, 5), [0], 19),
    ]
    found = trajectory(runs.traced_record(decode, 10, steps, stop_ids=[19]))
    assert marks(found) == ["rwwwwr....", ".rwswwr...", "..rawmmmw.", "....raaa..", "........rw"]
    totals = found.totals
    assert (totals.forwards, totals.tokens_per_forward, totals.stationary) == (5, 9 / 5, 1)
    assert (totals.fast_forwards, totals.fast_forwarded, totals.fast_forwarded_per_forward) == (2, 6, 6 / 5)
    assert [state.fast_forward for state in found.states] == [0, 0, 2, 4, 0]
    assert totals.cells == {"root": 5, "accepted": 4, "stationary": 1, "right": 2, "misplaced": 3, "wrong": 13 - 3}
    assert found.states[1].cells[5].mark == "right", "a random guess that was right by chance"


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Requests of any trees over few words, so that tokens are right and out of place by chance."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    vocab = rng.choice([2, 3, 6])
    target = language(rng.randrange(99), vocab, memory=rng.choice([0, 1, 2]), period=rng.choice([0, 3]))
    output, steps = [target([0], [])], []
    for _ in range(rng.randint(1, 8)):
        tree = random_tree(rng, output[-1], vocab, rng.randint(1, 14))
        origins = [rng.choice(["guess", "noise", "pool"]) for _ in tree.tokens]
        tree = TokenTree(tree.tokens, tree.parents, tree.accept, origins)
        path = longest_path(tree, target, output)
        bonus = target([0], [*output, *(tree.tokens[row] for row in path[1:])])
        output += [*(tree.tokens[row] for row in path[1:]), bonus]
        steps.append((tree, path, bonus))
    # The last forward may emit more than the answer may have.
    budget = rng.randint(len(output) - len(steps[-1][1]) + 1, len(output))
    return runs.traced_record(decode, output[0], steps, budget=budget)


def longest_path(tree: TokenTree, target: ToyTarget, output: list[int]) -> list[int]:
    """The accepted rows of a tree, root first."""
    paths = {0: [0]}
    for row in range(1, len(tree)):
        above = paths.get(tree.parents[row])
        if above and (tree.accept is None or tree.accept[row]):
            text = target([0], [*output, *(tree.tokens[at] for at in above[1:])])
            if text == tree.tokens[row]:
                paths[row] = [*above, row]
    return max(paths.values(), key=len)


@given(records())
def test_any_trajectory_is_the_plain_one(made: RequestRecord) -> None:
    assert made.tokens is not None
    if not any(draft.ids for draft in made.tokens.drafts or ()):
        with pytest.raises(UsageError):
            trajectory(made)
        return
    found = trajectory(made)
    plain = oracles.states(made.model_dump(mode="json"))
    assert [[(c.position, c.row, c.id, c.mark) for c in state.cells] for state in found.states] == plain
    assert sum(state.emitted for state in found.states) == made.output_tokens - 1
    assert found.totals.tokens_per_forward == pytest.approx(made.tokens_per_forward)
    assert sum(found.totals.cells.values()) == sum(map(len, plain))
    assert list(found.totals.cells) == list(MARKS)
    for state in found.states:
        places = [cell.position for cell in state.cells]
        assert places == list(range(places[0], places[0] + len(places)))
        assert (state.cells[0].mark, state.cells[0].id) == ("root", made.output_ids[places[0]])


def decoded(target: ToyTarget, n: int, budget: int, seed: int, stops: frozenset[int]) -> RequestRecord:
    engine = ToyEngine(Clock())
    engine.target = target
    method = Method("cllm", "cllm", Options(block_size=n), True, Decoder)
    context = Context(50, 49, random.Random(seed))
    runner = Runner(engine, lambda label, request: context, 1, engine.clock, trace=True)
    (record,) = runner.segment(method, [Request("p", 0, [1, 2, 3], StopRule(stops, (), budget, decode))])
    return record


def blocks(found: Trajectory, n: int, stopped: bool) -> list[tuple[float, int]]:
    """Of each block that reached its end: its tokens over its states, and its stationary tokens, as CLLM counts.

    The last block of an answer that ended by itself ends there.
    """
    counted = []
    for start in range(0, len(found.ids), n):
        places = range(start, min(start + n, len(found.ids)) if stopped else start + n)
        mine = [state for state in found.states if state.cells[0].position in places]
        fed = [cell for state in mine for cell in state.cells if cell.position == places[-1]]
        if not mine or not (stopped or any(cell.mark in ("root", "accepted") for cell in fed)):
            break
        # The last forward adds no state where it was fed what is right: it confirms, and is all there is of one.
        confirms = len(mine) > 1 and all(
            cell.mark in ("root", "accepted") for cell in mine[-1].cells if cell.position in places
        )
        still = {cell.position for state in mine for cell in state.cells if cell.mark == "stationary"}
        counted.append((len(places) / (len(mine) - confirms), len(still)))
    return counted


def test_a_cllm_run_counts_what_its_trajectory_shows() -> None:
    seen = []
    for seed in range(100):
        rng = random.Random(seed)
        n, budget = rng.choice([3, 4, 8]), rng.randint(20, 60)
        target = language(seed, words=rng.choice([3, 8]), memory=rng.choice([0, 1, 2]), period=rng.choice([0, 4]))
        stops = frozenset({rng.randrange(8)}) if seed % 2 else frozenset[int]()
        record = decoded(target, n, budget, seed, stops)
        if not record.measures:  # it ended before a block did
            continue
        counted = blocks(trajectory(record), n, record.finish_reason == "stop")
        assert record.measures == pytest.approx(
            {"fast_forwarded": mean(fast for fast, _ in counted), "stationary": mean(still for _, still in counted)}
        )
        seen += counted
    assert sum(still for _, still in seen) > 30
    assert len({fast for fast, _ in seen}) > 5


def small(**changes: Any) -> RequestRecord:
    return runs.traced_record(decode, 10, [(guess(10, 11, 12), [0, 1], 13)], budget=3, **changes)


def test_what_has_no_trajectory_says_what_to_do() -> None:
    with pytest.raises(UsageError, check=wording):
        trajectory(small(whole=False))
    with pytest.raises(UsageError, check=wording):
        trajectory(small(tokens=None))
    with pytest.raises(UsageError, check=wording):
        trajectory(runs.traced_record(decode, 10, [(TokenTree.chain([10]), [0], 11)], budget=2))
    with pytest.raises(UsageError, check=wording):
        trajectory(runs.traced_record(decode, 10, [], budget=1))


@pytest.mark.parametrize(
    "damage",
    [
        {"parents": [0, 2]},
        {"parents": [1, 1]},
        {"parents": [-1, 1]},
        {"path": [2]},
        {"path": [1, 1]},
        {"path": [3]},
        {"path": []},
        {"draft_only": [3]},
        {"draft_only": [-1]},
        {"scores": [-0.5]},
    ],
    ids=str,
)
def test_a_tree_that_is_none_is_refused(damage: dict[str, Any]) -> None:
    made = small()
    assert trajectory(made).states
    assert made.tokens is not None
    assert made.tokens.drafts is not None
    damaged = made.tokens.model_copy(update={"drafts": [made.tokens.drafts[0].model_copy(update=damage)]})
    with pytest.raises(UsageError, check=wording):
        trajectory(made.model_copy(update={"tokens": damaged}))
