"""What every tree of the builders keeps to, the published codes' own trees, and the settings that change nothing."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wording import wording

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.builders import BUILDERS, DEFAULT, Builder, Knobs
from specbench.decoding.trees.fan_out import accum_logp, gap_caps, top2gap
from specbench.decoding.trees.marginals import Marginals
from specbench.decoding.trees.prefixes import chain, optimal

ROOT = 0
BUDGETS = st.integers(1, 40)
BY_NAME = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
SETTINGS = st.builds(
    Knobs,
    width=st.integers(1, 5),
    beta=st.floats(0, 4),
    g0=st.floats(-1, 3),
    spine=st.booleans(),
    step_seconds=st.dictionaries(st.integers(1, 40), st.floats(0.1, 10), min_size=1),
)


@st.composite
def scored(draw: st.DrawFn, depths: int = 4, candidates: int = 4, *, ragged: bool = True) -> Marginals:
    """Small marginals. Weights are small integers, so equal and impossible candidates are common; vocabularies of the
    depths overlap."""
    every = draw(st.integers(1, candidates))
    tokens, logp = [], []
    for _ in range(draw(st.integers(0, depths))):
        size = draw(st.integers(1, candidates)) if ragged else every
        weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
        weights = sorted([max(1, weights[0]), *weights[1:]], reverse=True)
        total = sum(weights) + draw(st.integers(0, 5))  # the rest of the vocabulary
        tokens.append(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size, unique=True)))
        logp.append([math.log(weight / total) if weight else -math.inf for weight in weights])
    return Marginals(ROOT, tokens, logp)


def depths_of(tree: TokenTree) -> list[int]:
    depths = [0]
    for parent in tree.parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def accepted(tree: TokenTree, emitted: Sequence[int]) -> int:
    """Return the number of drafts accepted if the target emits ``emitted``."""
    reached = {0}
    depths = depths_of(tree)
    for row in range(1, len(tree)):
        parent = tree.parents[row]
        if parent in reached and depths[parent] < len(emitted) and tree.tokens[row] == emitted[depths[parent]]:
            reached.add(row)
    return max(depths[row] for row in reached)


def full(caps: Sequence[int]) -> int:
    """Rows of the tree whose rows have so many children each, by depth."""
    return 1 + sum(accumulate(caps, mul))


def same(one: TokenTree, other: TokenTree) -> bool:
    return list(one.tokens) == list(other.tokens) and list(one.parents) == list(other.parents)


@BY_NAME
@given(marginals=scored(), budget=BUDGETS, knobs=SETTINGS)
@settings(max_examples=50)
def test_rows_are_distinct_candidates_under_earlier_rows(
    build: Builder, marginals: Marginals, budget: int, knobs: Knobs
) -> None:
    tree = build(marginals, budget, knobs)
    assert (tree.tokens[0], tree.parents[0], tree.accept) == (ROOT, -1, None)
    assert len(tree) <= budget
    rows = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(rows)) == len(rows)
    depths = depths_of(tree)
    for row, (parent, token) in enumerate(rows[1:], 1):
        assert 0 <= parent < row
        assert token in marginals.tokens[depths[parent]]
    assert len(build(marginals, 1, knobs)) == 1


@given(marginals=scored(), budget=BUDGETS, width=st.integers(1, 5), g0=st.floats(-1, 3), spine=st.booleans())
@settings(max_examples=50)
def test_the_budget_is_used_up_as_far_as_there_are_paths(
    marginals: Marginals, budget: int, width: int, g0: float, spine: bool
) -> None:
    sizes = [len(tokens) for tokens in marginals.tokens]
    assert len(chain(marginals, budget)) == min(budget, 1 + len(sizes))
    assert len(optimal(marginals, budget, spine)) == min(budget, full(sizes))
    assert len(accum_logp(marginals, budget, width)) == min(budget, full([min(width, size) for size in sizes]))
    caps = gap_caps(marginals, width, g0=g0)
    assert all(1 <= cap <= min(width, size) for cap, size in zip(caps, sizes, strict=True))
    assert len(top2gap(marginals, budget, width, g0=g0)) == min(budget, full(caps))


@given(marginals=scored(ragged=False), budget=BUDGETS, width=st.integers(1, 5))
def test_accum_logp_is_the_published_tree(marginals: Marginals, budget: int, width: int) -> None:
    """``_build_from_topk`` of JetSpec's ``accum_logp.py``, written down from its description: leaves are pushed too."""
    tokens, parents, depths, counter = [ROOT], [-1], [0], 0
    heap = [(0.0, counter, 0)]
    while heap and len(tokens) < budget:
        cost, _, node = heapq.heappop(heap)
        if depths[node] == len(marginals.tokens):
            continue
        row = marginals.tokens[depths[node]]
        for rank in range(min(width, len(row), budget - len(tokens))):
            counter += 1
            child = -cost + marginals.logp[depths[node]][rank]
            heapq.heappush(heap, (-child, counter, len(tokens)))
            tokens.append(row[rank])
            parents.append(node)
            depths.append(depths[node] + 1)
    assert same(accum_logp(marginals, budget, width), TokenTree(tokens, parents))


def test_caps_are_the_published_rule() -> None:
    """By hand: 7 × sigmoid(-2 × (gap - 1)) of gaps 0, 1, 2 and 5 is 6.17, 3.5, 0.83 and 0.002; halves round to even."""
    logp = [[-0.5, -0.5 - gap, *[-9.0] * 5] for gap in (0.0, 1.0, 2.0, 5.0, math.inf)]
    logp[-1][2:] = [-math.inf] * 5
    marginals = Marginals(ROOT, [list(range(7))] * 5, logp)
    assert gap_caps(marginals) == gap_caps(marginals, width=7, beta=2.0, g0=1.0) == [6, 4, 1, 1, 1]
    assert gap_caps(marginals, beta=1.0) == [5, 4, 2, 1, 1]  # the published class's default: wider when sure
    assert gap_caps(marginals, width=5) == [4, 2, 1, 1, 1]
    assert gap_caps(marginals, beta=0.0) == [4] * 5  # not the identity
    assert gap_caps(Marginals(ROOT, [[3]], [[-0.1]])) == [1]
    assert same(top2gap(marginals, 60), top2gap(marginals, 60, width=7, beta=2.0, g0=1.0))  # as the benchmark sets it
    assert same(top2gap(marginals, 60), BUILDERS["top2gap"](marginals, 60))
    assert not same(top2gap(marginals, 60), top2gap(marginals, 60, beta=1.0))


@given(marginals=scored(ragged=False), budget=BUDGETS)
def test_without_a_spine_optimal_is_ddtree(marginals: Marginals, budget: int) -> None:
    """``build_ddtree_tree`` written down from its description: a heap of rank tuples, a budget without the root. Equal
    paths may be chosen otherwise, so their probabilities are compared."""
    top = marginals.logp
    heap: list[tuple[float, tuple[int, ...]]] = [(-top[0][0], (0,))] if top else []
    published: list[float] = []
    while heap and len(published) < budget - 1:
        cost, ranks = heapq.heappop(heap)
        published.append(cost)
        above = sum(top[depth][rank] for depth, rank in enumerate(ranks[:-1]))
        if ranks[-1] + 1 < len(top[0]):
            heapq.heappush(heap, (-(above + top[len(ranks) - 1][ranks[-1] + 1]), (*ranks[:-1], ranks[-1] + 1)))
        if len(ranks) < len(top):
            heapq.heappush(heap, (cost - top[len(ranks)][0], (*ranks, 0)))
    tree = optimal(marginals, budget, spine=False)
    depths, costs = depths_of(tree), [0.0]
    for row in range(1, len(tree)):
        depth, parent = depths[row] - 1, tree.parents[row]
        costs.append(costs[parent] - top[depth][list(marginals.tokens[depth]).index(tree.tokens[row])])
    assert costs[1:] == sorted(costs[1:])  # most probable first
    assert costs[1:] == pytest.approx(published)


@given(marginals=scored(), budget=BUDGETS, data=st.data())
def test_with_a_spine_no_target_accepts_less_than_of_the_chain(
    marginals: Marginals, budget: int, data: st.DataObject
) -> None:
    tree, spine = optimal(marginals, budget), chain(marginals, budget)
    assert list(tree.tokens)[: len(spine)] == list(spine.tokens)
    assert list(tree.parents)[: len(spine)] == list(spine.parents)
    emitted = [data.draw(st.sampled_from([*tokens, 99])) for tokens in marginals.tokens]
    assert accepted(tree, emitted) >= accepted(spine, emitted)


def test_registry_hands_each_builder_its_knobs() -> None:
    logp = [[math.log(p) for p in (0.5, 0.3, 0.1)]] * 3
    marginals = Marginals(ROOT, [[1, 2, 3]] * 3, logp)
    assert (list(BUILDERS), DEFAULT) == (["chain", "accum-logp", "top2gap", "optimal", "auto"], "optimal")
    knobs = Knobs(width=2, beta=1.0, g0=0.5, spine=False)
    assert same(BUILDERS["chain"](marginals, 3, knobs), chain(marginals, 3))
    assert same(BUILDERS["accum-logp"](marginals, 9, knobs), accum_logp(marginals, 9, 2))
    assert same(BUILDERS["top2gap"](marginals, 9, knobs), top2gap(marginals, 9, 2, 1.0, 0.5))
    assert same(BUILDERS["optimal"](marginals, 4, knobs), optimal(marginals, 4, spine=False))
    assert not same(BUILDERS["optimal"](marginals, 4), BUILDERS["optimal"](marginals, 4, knobs))


def test_what_no_builder_can_take_is_refused() -> None:
    marginals = Marginals(ROOT, [[1, 2]], [[-1.0, -2.0]])
    for build in BUILDERS.values():
        with pytest.raises(ValueError, check=wording):
            build(marginals, 0, Knobs(step_seconds={1: 1.0}))
    for narrow in (accum_logp, top2gap):
        with pytest.raises(ValueError, check=wording):
            narrow(marginals, 4, 0)
    with pytest.raises(ValueError, check=wording):
        BUILDERS["auto"](marginals, 4)


def test_marginals_that_are_none_are_refused() -> None:
    none: list[tuple[list[list[int]], list[list[float]]]] = [
        ([[1]], []),
        ([[1, 2]], [[-1.0]]),
        ([[]], [[]]),
        ([[1]], [[math.nan]]),
        ([[1, 2]], [[-2.0, -1.0]]),
        ([[1, 1]], [[-1.0, -2.0]]),
    ]
    for tokens, logp in none:
        with pytest.raises(ValueError, check=wording):
            Marginals(ROOT, tokens, logp)
