"""Shares of right answers: agreement with SciPy, hand-made differences, coverage."""

from __future__ import annotations

import pytest
import scipy  # scipy.stats is imported lazily
from support.asserting import known
from support.wording import wording

from benchmarks.interval_coverage import share_coverage
from specbench.analysis.stats import difference_verdict, mcnemar, paired_difference, proportion_interval


@pytest.mark.parametrize("successes", [0, 1, 73, 163, 164])
def test_wilson_agrees_with_scipy(successes: int) -> None:
    theirs = scipy.stats.binomtest(successes, 164).proportion_ci(0.95, method="wilson")
    ours = known(proportion_interval(successes, 164))
    assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=1e-12), pytest.approx(theirs.high, abs=1e-12))
    assert 0.0 <= ours.low <= successes / 164 <= ours.high <= 1.0


def test_proportion_of_nothing() -> None:
    assert proportion_interval(0, 0) is None
    with pytest.raises(ValueError, check=wording):
        proportion_interval(3, 2)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (0, 5), (3, 3), (4, 11), (600, 700)])
def test_mcnemar_agrees_with_scipys_binomial_test(gained: int, lost: int) -> None:
    theirs = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(theirs)


def test_gains_and_losses_are_counted_and_equal_arms_not_proven_equal() -> None:
    #       prompt  a     a     b      c      d      e      f
    mine = [True, False, True, False, True, True, False]
    other = [False, False, False, True, True, False, False]
    found = paired_difference(mine, other, seed=0, clusters=list("aabcdef"))
    assert (found.gained, found.lost, found.clusters) == (3, 1, 6)
    assert found.value == pytest.approx((0.5 + 1 - 1 + 0 + 1 + 0) / 6)
    assert found.p_value == mcnemar(3, 1)
    assert found == paired_difference(mine, other, seed=0, clusters=list("aabcdef"))
    few, many = (paired_difference([True] * n, [True] * n, seed=0) for n in (8, 800))
    assert few.interval is not None
    assert many.interval is not None
    assert few.interval.low < -0.1 < 0 < 0.1 < few.interval.high
    assert many.interval.low < 0 < many.interval.high < 0.01
    assert (few.value, few.p_value, difference_verdict(few)) == (0, 1, "no difference shown")


def test_a_verdict_needs_an_interval_without_0() -> None:
    worse = paired_difference([False] * 30 + [True] * 70, [True] * 100, seed=0)
    assert (worse.value, difference_verdict(worse)) == (-0.3, "fewer right")
    better = paired_difference([True] * 100, [False] * 30 + [True] * 70, seed=0)
    assert difference_verdict(better) == "more right"
    few = paired_difference([True] * 5, [False] * 5, seed=0)
    assert (few.interval, difference_verdict(few)) == (None, "too few prompts")
    with pytest.raises(ValueError, check=wording):
        paired_difference([], [], seed=0)


@pytest.mark.parametrize(("gained", "lost"), [(0.05, 0.01), (0.25, 0.1)])
def test_the_interval_covers_the_truth(gained: float, lost: float) -> None:
    # Counts are few and whole, so that no interval can have exactly 95 %; it must not have much less.
    assert 0.93 <= share_coverage(gained, lost, 60, experiments=500, draws=500) <= 0.99
