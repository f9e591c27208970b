"""Simulated acceptance, checked with the engine's own acceptance rule and the requested mean and spread."""

from __future__ import annotations

import random
from collections.abc import Collection
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import decoders
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.decoding.tree import COMPUTED, TokenTree
from specbench.planning.simulation import Acceptance, Lengths, force, parse
from specbench.results.schema import SimulatedAcceptance

WORDS, VOCAB = 4, 300  # few words, so that siblings repeat each other; more tokens than any tree has
STOPS = frozenset({3})


def accepted(tree: TokenTree, forced: list[int], computed: list[int]) -> tuple[list[int], int]:
    """Path and last token that the engine finds if the target emits ``computed`` where ``forced`` leaves it free."""
    emitted = [token if token != COMPUTED else own for token, own in zip(forced, computed, strict=True)]
    return decoders.accepted(tree, emitted)


def longest(tree: TokenTree, without: Collection[int]) -> int:
    """Tokens that the longest path of acceptable rows emits."""
    depths = [1]
    for row in range(1, len(tree)):
        allowed = (tree.accept is None or tree.accept[row]) and tree.tokens[row] not in without
        above = depths[tree.parents[row]]
        depths.append(above + 1 if above and allowed else 0)
    return max(depths)


trees = st.builds(
    lambda seed, rows: decoders.random_tree(random.Random(seed), 0, WORDS, rows),
    st.integers(0, 1 << 32),
    st.integers(1, 40),
)


@given(tree=trees, wanted=st.integers(1, 12), seed=st.integers(0, 1 << 32), stops=st.sampled_from([frozenset(), STOPS]))
def test_the_engine_accepts_what_was_wanted_whatever_the_target_says(
    tree: TokenTree, wanted: int, seed: int, stops: frozenset[int]
) -> None:
    rng = random.Random(seed)
    acceptance = Acceptance(Lengths(SimulatedAcceptance(mean=wanted, spread=0)), rng, VOCAB, stops)
    # A target that often agrees with drafts: where it is not forced, it would continue the path.
    computed = [rng.randrange(WORDS) for _ in range(len(tree))]
    forced = acceptance.forced(tree)
    path, bonus = accepted(tree, forced, computed)
    assert len(path) == min(wanted, longest(tree, stops))
    assert not stops & {*(tree.tokens[row] for row in path[1:]), bonus}
    assert len(forced) == len(tree)


def test_rows_get_the_parts_they_observe() -> None:
    # root → 7, and 7 again → 8 → 9: left alone, a target that says 8 after the second 7 has a longer path there.
    tree = TokenTree([1, 7, 7, 8, 9], [-1, 0, 0, 2, 3])
    forced = force(tree, 2, lambda known: 50)
    assert forced == [7, 50, 50, COMPUTED, COMPUTED]
    assert accepted(tree, forced, [7, 8, 8, 9, 9]) == ([0, 1], 50)
    assert force(tree, 3, lambda known: 50) == [7, 8, 8, 50, COMPUTED]
    tree = TokenTree.chain([1, 2, 3], drafts_only=True)
    assert force(tree, 3, lambda known: 50) == [50, COMPUTED, COMPUTED]
    assert force(TokenTree([1, 2, 3, 4, 5], [-1, 0, 0, 1, 2]), 3, lambda known: 50) == [2, 4, COMPUTED, 50, COMPUTED]
    tree = TokenTree([1, 7, 7, 8, 9, 6], [-1, 0, 0, 1, 2, 0], [True, True, True, True, True, False])
    seen = []

    def strange(known: Collection[int]) -> int:
        seen.append(set(known))
        return 50

    force(tree, 2, strange)
    force(tree, 1, strange)
    assert seen == [{8, 9}, {7}]  # the drafts after either 7; row 6 can never be accepted


def test_a_request_repeats_and_a_vocabulary_that_is_all_drafted_is_refused() -> None:
    acceptance = Acceptance.of(SimulatedAcceptance(mean=1, spread=0), "0", 4, STOPS)
    assert acceptance.forced(TokenTree([0, 0, 1], [-1, 0, 0]))[0] == 2  # all that is left
    with pytest.raises(UsageError, check=wording):
        acceptance.forced(TokenTree([0, 0, 1, 2], [-1, 0, 0, 0]))
    tree = TokenTree.chain(list(range(1, 17)))
    asked = SimulatedAcceptance(mean=6, spread=4)

    def steps(seed: str) -> list[list[int]]:
        acceptance = Acceptance.of(asked, seed, VOCAB, STOPS)
        return [acceptance.forced(tree) for _ in range(20)]

    assert steps("0/jacobi/p0/0/1") == steps("0/jacobi/p0/0/1")
    assert steps("0/jacobi/p0/0/1") != steps("0/jacobi/p1/0/1")


@pytest.mark.parametrize(
    ("mean", "spread"), [(4, 0), (3.4, 0.24**0.5), (4, 1.5), (4, 2), (2, 3), (1, 0), (1.5, 4), (7.3, 2.6)]
)
def test_lengths_have_the_mean_and_the_spread_asked_for(mean: float, spread: float) -> None:
    lengths, rng = Lengths(SimulatedAcceptance(mean=mean, spread=spread)), random.Random(0)
    drawn = [lengths.draw(rng) for _ in range(40_000)]
    assert min(drawn) >= 1
    assert fmean(drawn) == pytest.approx(mean, abs=0.08)  # four standard errors of the widest
    assert pstdev(drawn) == pytest.approx(spread, rel=0.03)


def test_whom_it_is_asked_of() -> None:
    rows = {"ar": 1, "ar#2": 1, "jacobi": 16, "jf": 64}
    four, wide = SimulatedAcceptance(mean=4, spread=0), SimulatedAcceptance(mean=3, spread=1.5)
    assert parse([], rows, {"ar", "ar#2"}) == {}
    assert parse(["4"], rows, {"ar", "ar#2"}) == {"jacobi": four, "jf": four}
    assert parse(["jf=3:1.5"], rows, {"ar"}) == {"jf": wide}
    # The one for all does not count for those that have their own, in any order and spelling.
    for specs in (["4", "jf=3:1.5"], ["jf=3:1.5,4"], [" jf=3:1.5 , 4 "]):
        assert parse(specs, rows, {"ar", "ar#2"}) == {"jacobi": four, "jf": wide}
    assert parse(["16,jf=40"], rows, {"ar", "ar#2"})["jf"].mean == 40
