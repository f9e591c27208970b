"""The detectable distance of the two-sample test solves its equation, and ignores tokens seen once."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from specbench.analysis.stats import two_sample
from specbench.analysis.stats.two_sample import _chi_squared


def test_answers_that_go_on_alone_make_the_detectable_distance_no_smaller() -> None:
    # Of each sampler ten answers begin alike; the other ten begin alike too, or each for itself.
    alike = {"p": [[1]] * 10 + [[2]] * 10}
    apart = [{"p": [[1]] * 10 + [[first + number] for number in range(10)]} for first in (100, 200)]
    whole = two_sample(alike, alike, seed=0).detectable
    half = two_sample(apart[0], apart[1], seed=0).detectable
    assert whole is not None
    assert half is not None
    assert half == pytest.approx(whole * math.sqrt(2))


def test_the_detectable_distance_solves_its_equation() -> None:
    # One context of 20 answers each and two categories: one degree of freedom, an information of 20 * 20 / 40.
    alike = {"p": [[1]] * 10 + [[2]] * 10}
    for level in (0.01, 0.05):
        above = NormalDist().inv_cdf(1 - level) * math.sqrt(2)
        low, high = above, 1000.0
        for _ in range(60):
            middle = (low + high) / 2
            short = middle < above + NormalDist().inv_cdf(0.8) * math.sqrt(2 + 4 * middle)
            low, high = (middle, high) if short else (low, middle)
        assert two_sample(alike, alike, seed=0, level=level).detectable == pytest.approx(math.sqrt(low / 40))


def test_a_context_counts_as_pearsons_statistic_of_its_table() -> None:
    generator = np.random.default_rng(5)
    for mine, other in ((4, 9), (12, 12), (30, 7)):
        labels = np.repeat((1.0, 0.0), (mine, other))
        both = np.stack([labels, generator.permutation(labels)])
        categories = generator.integers(0, 3, mine + other)
        table = [np.bincount(categories[row == side], minlength=3) for row in both for side in (1.0, 0.0)]
        expected = [chi2_contingency(table[at : at + 2], correction=False).statistic for at in (0, 2)]
        assert _chi_squared(both, categories) == pytest.approx(expected)
    assert _chi_squared(np.ones((2, 5)), np.array([0, 1, 1, 2, 2])).tolist() == [0, 0]


def test_answers_that_end_earlier_are_no_fault_and_their_beginnings_count() -> None:
    long, short = [[1, 2, 3]] * 10, [[1]] * 5
    found = two_sample({"p": long + short}, {"p": short + long}, seed=0)
    assert (found.contexts, found.answers) == (3, 30)
