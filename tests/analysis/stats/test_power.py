"""What is promised of a number of prompts, tried out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specbench.analysis.stats import Ratio, detectable, minimum_clusters, paired_ratio, prompts_needed, verdict

NOISE = 0.1  # of the logarithm of a prompt's ratio


def experiment(generator: np.random.Generator, prompts: int, faster: float, draws: int = 300) -> Ratio:
    """Answers of one length; the method is so much faster in truth."""
    seconds = np.full(prompts, 2.0)
    mine = seconds / faster * generator.lognormal(-(NOISE**2) / 2, NOISE, prompts)  # of mean 1
    tokens = [80.0] * prompts
    return paired_ratio((seconds.tolist(), tokens), (mine.tolist(), tokens), seed=0, draws=draws)


def seen(prompts: int, faster: float, experiments: int = 400) -> float:
    """Share of experiments that tell the method from AR."""
    generator = np.random.default_rng(prompts)
    verdicts = [verdict(experiment(generator, prompts, faster).interval) for _ in range(experiments)]
    return sum(text == "faster" for text in verdicts) / experiments


def test_the_detectable_difference_is_seen_four_times_in_five_and_half_of_it_seldom() -> None:
    generator = np.random.default_rng(3)
    found = [detectable(experiment(generator, 30, 1.0)) for _ in range(50)]
    smallest = float(np.median([share for share in found if share is not None]))
    assert 0.04 < smallest < 0.07
    assert 0.72 <= seen(30, 1 + smallest) <= 0.88
    assert seen(30, 1 + smallest / 2) < 0.5


def test_the_prompts_that_are_needed_are_enough_and_half_of_them_are_not() -> None:
    needed = prompts_needed(experiment(np.random.default_rng(1), 2_000, 1.0), 0.05)
    assert needed == pytest.approx((2.8016 * NOISE / math.log(1.05)) ** 2 + 1.92, rel=0.1)
    assert needed is not None
    assert 0.72 <= seen(needed, 1.05) <= 0.88
    assert seen(needed // 2, 1.05) < 0.7


def test_few_or_equal_prompts_have_an_order_of_magnitude_or_nothing() -> None:
    few = experiment(np.random.default_rng(2), 4, 1.0)
    assert detectable(few) is None
    assert 20 < (prompts_needed(few, 0.03) or 0) < 400
    alike = paired_ratio(([1.0] * 8, [9.0] * 8), ([0.5] * 8, [9.0] * 8), seed=0)
    assert detectable(alike) == 0
    assert prompts_needed(alike, 0.03) is None
    single = paired_ratio(([1.0], [9.0]), ([0.5], [9.0]), seed=0)
    assert (detectable(single), prompts_needed(single, 0.03)) == (None, None)
    assert prompts_needed(experiment(np.random.default_rng(2), 30, 1.0), 9.0) == minimum_clusters()
    # 10 · ((1.960 + 0.842) · 0.1 / 0.1)² = 78.49 prompts, and 1.960² / 2 = 1.92 more
    assert prompts_needed(Ratio(1.0, None, 10, 0, 0, log_se=0.1), math.expm1(0.1)) == 81
    same, faster = (experiment(np.random.default_rng(2), 30, by) for by in (1.0, 2.0))
    assert detectable(same) == pytest.approx(detectable(faster))
    assert prompts_needed(same, 0.03) == prompts_needed(faster, 0.03)
