"""What the trees are worth: against every possible tree, against each other, and the size that pays best."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.builders import BUILDERS, Knobs
from specbench.decoding.trees.marginals import Marginals
from specbench.decoding.trees.paths import expected_accepted
from specbench.decoding.trees.prefixes import auto, optimal

ROOT = 0
GRAPHS = {rows: 0.01 + 2e-5 * rows for rows in (1, 2, 4, 8, 16, 32)}  # seconds; any shape of a bucket table
FALLING = {12: 1.5, 2: 1.0, 7: 3.0}  # a larger bucket may be the faster one, and the order is any


def scored(
    rng: random.Random, depths: int, candidates: int, *, sure: float = 0.7, decay: float = 0.97, vocabulary: int = 50
) -> Marginals:
    """Marginals of a head whose best token has about the probability ``sure``, by ``decay`` less with every depth, and
    whose other tokens follow a power law."""
    tail = [rank**-1.5 for rank in range(1, vocabulary)]
    logp = []
    for depth in range(depths):
        mean = sure * decay**depth
        best = min(0.999, max(0.03, rng.betavariate(1.5 * mean, 1.5 * (1 - mean))))
        others = [(1 - best) * weight / sum(tail) for weight in tail[: candidates - 1]]
        logp.append([math.log(p) for p in sorted([best, *others], reverse=True)])
    return Marginals(ROOT, [rng.sample(range(vocabulary), candidates) for _ in range(depths)], logp)


def prefixes(marginals: Marginals) -> dict[tuple[int, ...], float]:
    """Every prefix, as ranks, with its probability."""
    every = {}
    for depth in range(1, len(marginals.tokens) + 1):
        for ranks in product(*(range(len(logp)) for logp in marginals.logp[:depth])):
            every[ranks] = math.exp(sum(marginals.logp[d][rank] for d, rank in enumerate(ranks)))
    return every


def test_no_tree_is_worth_more_than_optimal() -> None:
    """A tree is a set of prefixes, so none is worth more than as many of the most probable ones."""
    for seed in range(12):
        rng = random.Random(seed)
        sizes = {"depths": rng.randint(1, 4), "candidates": rng.randint(1, 4)}
        marginals = scored(rng, **sizes, sure=rng.choice([0.3, 0.6, 0.9]))
        every = prefixes(marginals)
        spine = {(0,) * depth for depth in range(1, len(marginals.tokens) + 1)}
        free = sorted(every.values(), reverse=True)
        others = sorted((p for ranks, p in every.items() if ranks not in spine), reverse=True)
        for budget in range(1, 40):
            worth = expected_accepted(optimal(marginals, budget, spine=False))
            assert worth == pytest.approx(sum(free[: budget - 1]))
            for name, build in BUILDERS.items():
                tree = build(marginals, budget, Knobs(width=3, step_seconds=GRAPHS))
                assert expected_accepted(tree) <= worth + 1e-12, name
            if budget > len(spine):  # around the spine too, the rest is the best there is
                expected = sum(every[ranks] for ranks in spine) + sum(others[: budget - 1 - len(spine)])
                assert expected_accepted(optimal(marginals, budget)) == pytest.approx(expected)


def test_expectation_is_the_mean_over_targets() -> None:
    marginals = Marginals(ROOT, [[5, 6], [7, 5]], [[math.log(0.6), math.log(0.3)], [math.log(0.5), math.log(0.25)]])
    trees = [
        (TokenTree([ROOT, 5, 6, 7, 5], [-1, 0, 0, 1, 2]), 0.6 * (1 + 0.5) + 0.3 * (1 + 0.25)),  # 5-7 and 6-5
        (TokenTree([ROOT], [-1]), 0.0),
        (TokenTree([ROOT, 9, 7], [-1, 0, 1]), 0.0),  # not a candidate, and below it nothing can come
        (TokenTree([ROOT, 5, 7, 1], [-1, 0, 1, 2]), 0.6 + 0.3),  # deeper than the head looks
    ]
    for tree, worth in trees:
        scored_tree = replace(tree, scores=marginals.scores(tree))
        assert expected_accepted(scored_tree) == pytest.approx(worth), tree


def padded(table: Mapping[int, float], rows: int) -> float:
    return table[min(bucket for bucket in table if bucket >= rows)]


@pytest.mark.parametrize("table", [GRAPHS, FALLING, {4: 1.0}, {1: 1.0, 32: 1.01}, {1: 1.0, 32: 99.0}], ids=str)
def test_auto_takes_the_budget_that_brute_force_finds(table: dict[int, float]) -> None:
    # With 3 depths 14 drafts at most, less than some budgets; with 6 a spine that the best trees do not hold.
    for most, seed in product((1, 5, 12, 40), range(6)):
        marginals = scored(random.Random(seed), depths=3 if seed < 3 else 6, candidates=2, sure=0.5)
        trees = {rows: optimal(marginals, rows, spine=False) for rows in range(1, min(most, max(table)) + 1)}
        rates = {n: (1 + expected_accepted(tree)) / padded(table, len(tree)) for n, tree in trees.items()}
        sized = auto(marginals, table, most)
        assert sized.budget == len(sized.tree) <= most
        assert sized.seconds == padded(table, sized.budget)
        assert sized.expected == pytest.approx(expected_accepted(sized.tree))
        assert (1 + sized.expected) / sized.seconds == pytest.approx(max(rates.values()))
        assert list(sized.tree.tokens) == list(optimal(marginals, sized.budget, spine=False).tokens)
        # The same steps as a function: every size is asked about, and the rate is the same.
        called = auto(marginals, lambda rows: padded(table, rows), min(most, max(table)))
        assert (1 + called.expected) / called.seconds == pytest.approx(max(rates.values()))


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builders_tree_says_what_the_head_gave_its_rows(name: str) -> None:
    rng = random.Random(name)
    for budget in (1, 2, 9, 30):
        marginals = scored(rng, 4, 5)
        tree = BUILDERS[name](marginals, budget, Knobs(step_seconds=GRAPHS))
        found = tree.row_scores()
        assert found is not None
        assert found[0] is None
        depths = [0]
        for row in range(1, len(tree)):
            depths.append(depths[tree.parents[row]] + 1)
            rank = list(marginals.tokens[depths[row] - 1]).index(tree.tokens[row])
            assert found[row] == marginals.logp[depths[row] - 1][rank]


def test_a_row_that_the_head_did_not_score_has_no_score() -> None:
    marginals = Marginals(ROOT, [[4, 6], [5]], [[-0.5, -math.inf], [-0.25]])
    tree = TokenTree([ROOT, 4, 6, 9, 5, 7, 4], [-1, 0, 0, 0, 1, 1, 4])
    assert marginals.scores(tree) == [None, -0.5, None, None, -0.25, None, None]
