"""Known values, agreement with SciPy, and coverage in a band that an unpaired or mis-scaled bootstrap would miss."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest, bootstrap

from specbench import stats
from specbench.stats import Interval, Ratio, minimum_clusters, paired_ratio, proportion_interval, verdict

Floats = npt.NDArray[np.float64]
Arm = tuple[list[float], list[float]]


def simulated(generator: np.random.Generator, prompts: int) -> tuple[Floats, Floats, Floats]:
    """(baseline seconds, tokens, method seconds), [prompts] each: lengths vary a lot, the per-prompt speedup a little,
    so the arms are strongly correlated and only a paired interval is narrow."""
    tokens = generator.lognormal(5.0, 0.7, prompts)
    baseline = tokens * 0.025 * generator.lognormal(0.0, 0.05, prompts)
    return baseline, tokens, baseline / generator.lognormal(0.5, 0.25, prompts)


def arm(seconds: Floats, tokens: Floats) -> Arm:
    return seconds.tolist(), tokens.tolist()


def width(ratio: Ratio) -> float:
    assert ratio.interval is not None
    return ratio.interval.high - ratio.interval.low


def test_value_is_ratio_of_sums_not_mean_of_ratios() -> None:
    # Per prompt: 2x and 1x. Mean of ratios 1.5, but the long prompt dominates the time: 110 s / 105 s.
    ratio = paired_ratio(([10.0, 100.0], [10, 100]), ([5.0, 100.0], [10, 100]), seed=0)
    assert ratio.value == pytest.approx(110 / 105)


def test_value_divides_by_each_arms_own_tokens() -> None:
    # The method wrote half the tokens in half the time: no faster.
    assert paired_ratio(([4.0, 4.0], [40, 40]), ([2.0, 2.0], [20, 20]), seed=0).value == pytest.approx(1.0)


def test_a_constant_speedup_has_a_point_interval() -> None:
    seconds = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
    ratio = paired_ratio((seconds, seconds), ([s / 2 for s in seconds], seconds), seed=0, draws=200)
    assert ratio.interval is not None
    assert (ratio.interval.low, ratio.interval.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert verdict(ratio) == "faster"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agrees_with_scipy(seed: int) -> None:
    baseline, tokens, method = simulated(np.random.default_rng(seed), 50)
    method_tokens = tokens * np.random.default_rng(seed + 100).uniform(0.7, 1.3, 50)

    def statistic(a: Floats, m: Floats, b: Floats, n: Floats, axis: int) -> Floats:
        return (a.sum(axis) / m.sum(axis)) / (b.sum(axis) / n.sum(axis))

    theirs = bootstrap(
        (baseline, tokens, method, method_tokens),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    ours = paired_ratio(arm(baseline, tokens), arm(method, method_tokens), seed=seed)
    assert ours.interval is not None
    # Both ends carry Monte Carlo error of 10,000 draws: about 2 % of the width.
    tolerance = 0.05 * (theirs.high - theirs.low)
    assert ours.interval.low == pytest.approx(theirs.low, abs=tolerance)
    assert ours.interval.high == pytest.approx(theirs.high, abs=tolerance)


def test_coverage_is_near_nominal() -> None:
    generator = np.random.default_rng(7)
    baseline, _, method = simulated(generator, 2_000_000)
    truth = baseline.sum() / method.sum()
    hits = 0
    for experiment in range(200):
        baseline, tokens, method = simulated(generator, 40)
        interval = paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=experiment, draws=500).interval
        assert interval is not None
        hits += interval.low <= truth <= interval.high
    # Nominal 190; the percentile interval has about 184 at n=40. Resampling the arms apart gives 200,
    # tails of alpha instead of alpha / 2 give 164.
    assert 176 <= hits <= 196


def test_a_against_a_shows_no_difference() -> None:
    generator = np.random.default_rng(3)
    first, tokens, _ = simulated(generator, 60)
    again = first * generator.lognormal(0.0, 0.02, 60)  # the same work, timed twice
    ratio = paired_ratio(arm(first, tokens), arm(again, tokens), seed=0)
    assert ratio.interval is not None
    assert ratio.interval.low < 1.0 < ratio.interval.high
    assert verdict(ratio) == "no difference shown"


def test_identical_arms_give_exactly_one() -> None:
    seconds, tokens, _ = simulated(np.random.default_rng(4), 30)
    ratio = paired_ratio(arm(seconds, tokens), arm(seconds, tokens), seed=0)
    assert ratio.value == 1.0
    assert ratio.interval == Interval(1.0, 1.0, 0.95)
    assert verdict(ratio) == "no difference shown"


def test_seed_determines_the_interval_and_is_kept() -> None:
    baseline, tokens, method = simulated(np.random.default_rng(5), 40)
    runs = [paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=seed) for seed in (11, 11, 12)]
    assert runs[0] == runs[1]
    assert runs[0].interval != runs[2].interval
    assert (runs[0].seed, runs[0].draws, runs[0].clusters) == (11, 10_000, 40)


def test_blocks_do_not_change_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, tokens, method = simulated(np.random.default_rng(6), 40)
    whole = paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1, draws=1000)
    monkeypatch.setattr(stats, "_CELLS_PER_BLOCK", 40 * 7)
    assert paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1, draws=1000) == whole


def test_clusters_widen_the_interval_of_correlated_turns() -> None:
    generator = np.random.default_rng(8)
    baseline, tokens, method = simulated(generator, 40)
    rows = [np.repeat(column, 4) for column in (baseline, tokens, method)]  # four turns as fast as one another
    prompts = [f"p{i:02d}" for i in range(40) for _ in range(4)]
    apart = paired_ratio(arm(rows[0], rows[1]), arm(rows[2], rows[1]), seed=1)
    together = paired_ratio(arm(rows[0], rows[1]), arm(rows[2], rows[1]), seed=1, clusters=prompts)
    single = paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1)
    assert (apart.clusters, together.clusters) == (160, 40)
    assert width(together) == pytest.approx(2.0 * width(apart), rel=0.15)  # sqrt(4 turns)
    # Copies of a prompt add nothing: exactly the interval of the prompts themselves.
    assert width(together) == pytest.approx(width(single))


def test_row_order_does_not_matter_with_prompt_ids() -> None:
    baseline, tokens, method = simulated(np.random.default_rng(9), 30)
    ids = [f"p{i:02d}" for i in range(30)]
    order = np.random.default_rng(0).permutation(30)
    forward = paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1, clusters=ids)
    shuffled = paired_ratio(
        arm(baseline[order], tokens[order]), arm(method[order], tokens[order]), seed=1, clusters=[ids[i] for i in order]
    )
    assert forward.interval is not None
    assert shuffled.interval is not None
    assert shuffled.interval.low == pytest.approx(forward.interval.low)
    assert shuffled.interval.high == pytest.approx(forward.interval.high)


def test_too_few_prompts_have_no_interval_and_no_verdict() -> None:
    assert [minimum_clusters(level) for level in (0.5, 0.9, 0.95, 0.99)] == [2, 5, 6, 8]
    for prompts in range(1, 6):
        ratio = paired_ratio(([2.0] * prompts, [9] * prompts), ([1.0] * prompts, [9] * prompts), seed=0)
        assert ratio.value == 2.0
        assert ratio.interval is None
        assert verdict(ratio) == "too few prompts"
    repeats = paired_ratio(([2.0] * 12, [9] * 12), ([1.0] * 12, [9] * 12), seed=0, clusters=["a", "b"] * 6)
    assert repeats.interval is None  # many rows, two prompts


def test_prompts_without_output_leave_no_interval_when_a_resample_can_be_empty() -> None:
    seconds, tokens = [0.0] * 9 + [4.0], [0] * 9 + [8]
    ratio = paired_ratio((seconds, tokens), (seconds, tokens), seed=0)
    assert ratio.value == 1.0
    assert ratio.interval is None


def test_an_arm_without_tokens_has_no_value() -> None:
    ratio = paired_ratio(([0.0] * 8, [0] * 8), ([0.0] * 8, [0] * 8), seed=0)
    assert math.isnan(ratio.value)
    assert verdict(ratio) == "too few prompts"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.99, 1.2, "no difference shown"),
        (1.0, 1.2, "no difference shown"),
        (0.8, 1.0, "no difference shown"),
    ],
)
def test_verdict_follows_the_interval_and_not_the_value(low: float, high: float, said: str) -> None:
    assert verdict(Ratio(1.5, Interval(low, high, 0.95), 40, 100, 0)) == said


@pytest.mark.parametrize(
    ("numerator", "denominator", "clusters"),
    [
        (([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, 1.0]), None),
        (([1.0, -2.0], [1.0, 1.0]), ([1.0, 2.0], [1.0, 1.0]), None),
        (([1.0, math.nan], [1.0, 1.0]), ([1.0, 2.0], [1.0, 1.0]), None),
        (([1.0, 2.0], [1.0, 1.0]), ([1.0, 2.0], [1.0, 1.0]), ["a"]),
    ],
)
def test_bad_columns_are_refused(numerator: Arm, denominator: Arm, clusters: list[str] | None) -> None:
    with pytest.raises(ValueError, match=r"finite|cluster ids|inhomogeneous"):
        paired_ratio(numerator, denominator, seed=0, clusters=clusters)


@pytest.mark.parametrize("successes", [0, 1, 73, 163, 164])
def test_wilson_agrees_with_scipy(successes: int) -> None:
    theirs = binomtest(successes, 164).proportion_ci(0.95, method="wilson")
    ours = proportion_interval(successes, 164)
    assert ours is not None
    assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=1e-12), pytest.approx(theirs.high, abs=1e-12))
    assert 0.0 <= ours.low <= successes / 164 <= ours.high <= 1.0


def test_proportion_of_nothing() -> None:
    assert proportion_interval(0, 0) is None
    with pytest.raises(ValueError, match="3 successes of 2"):
        proportion_interval(3, 2)
