"""Known values, agreement with SciPy, and coverage of known truths by intervals of all sizes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from support.asserting import known

from benchmarks.interval_coverage import TRUTH_BLOCKS, WORLDS, World, coverage, stepped
from specbench.analysis.stats import (
    Interval,
    Ratio,
    independent_ratio,
    interval,
    minimum_clusters,
    paired_ratio,
    per_prompt,
    relative_ratio,
    verdict,
)

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


def test_value_is_a_ratio_of_sums_over_each_arms_own_tokens() -> None:
    # Per prompt: 2x and 1x. Mean of ratios 1.5, but the long prompt dominates the time: 110 s / 105 s.
    ratio = paired_ratio(([10.0, 100.0], [10, 100]), ([5.0, 100.0], [10, 100]), seed=0)
    assert ratio.value == pytest.approx(110 / 105)
    # The method wrote half the tokens in half the time: no faster.
    assert paired_ratio(([4.0, 4.0], [40, 40]), ([2.0, 2.0], [20, 20]), seed=0).value == pytest.approx(1.0)
    seconds = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
    ratio = paired_ratio((seconds, seconds), ([s / 2 for s in seconds], seconds), seed=0, draws=200)
    assert ratio.interval is not None
    assert (ratio.interval.low, ratio.interval.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert verdict(ratio.interval) == "faster"


def test_the_interval_by_hand_without_vectors() -> None:
    # Hall's symmetric bootstrap-t, a resample at a time; only the indices are shared.
    generator = np.random.default_rng(12)
    a, m, b = simulated(generator, 9)
    n = m * generator.uniform(0.7, 1.3, 9)

    def log_ratio(w: Floats) -> float:
        return math.log((w @ a) / (w @ m)) - math.log((w @ b) / (w @ n))

    def error(w: Floats) -> float:
        pull = a / (w @ a) - m / (w @ m) - b / (w @ b) + n / (w @ n)
        return math.sqrt(9 / 8 * float(w @ pull**2))

    ones = np.ones(9)
    truth, se = log_ratio(ones), error(ones)
    picked = np.random.Generator(np.random.PCG64(4)).integers(9, size=(500, 9))
    weights = [np.bincount(row, minlength=9).astype(float) for row in picked]
    far = [abs(log_ratio(w) - truth) / math.sqrt(error(w) ** 2 * (1 - 1 / 81) + se**2 / 81) for w in weights]
    half = float(np.quantile(far, 0.95)) * se
    found = paired_ratio(arm(a, m), arm(b, n), seed=4, draws=500)
    assert found.interval is not None
    assert found.log_se == pytest.approx(se)
    assert found.interval.low == pytest.approx(math.exp(truth - half))
    assert found.interval.high == pytest.approx(math.exp(truth + half))


@pytest.mark.parametrize(("world", "prompts"), [("lognormal", 20), ("heavy", 40), ("turns", 20)])
def test_the_interval_covers_the_truth_in_93_to_97_percent_of_500_experiments(world: str, prompts: int) -> None:
    assert 0.93 <= coverage(WORLDS[world], prompts, experiments=500, draws=300) <= 0.97


@pytest.mark.parametrize("concurrency", [4, 16])
def test_the_interval_over_blocks_covers_the_truth_where_sequences_are_stepped_together(concurrency: int) -> None:
    assert 0.93 <= coverage(stepped(concurrency), 10, experiments=200, draws=300, of=3_000) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "units", "of"),
    [
        *((WORLDS[name], prompts, 2_000_000) for name in ("lognormal", "turns") for prompts in (12, 20, 40)),
        *((stepped(concurrency), blocks, TRUTH_BLOCKS) for concurrency in (4, 16) for blocks in (6, 10, 20)),
    ],
)
def test_the_interval_covers_the_truth_in_93_to_97_percent_of_2000_experiments(
    world: World, units: int, of: int
) -> None:
    assert 0.93 <= coverage(world, units, experiments=2_000, of=of) <= 0.97


def test_few_prompts_and_a_machine_that_pauses_make_no_interval_that_is_too_sure() -> None:
    # Six prompts are as few as get one; pauses of a few requests make intervals wider than need be, never narrower.
    assert 0.92 <= coverage(WORLDS["lognormal"], 6, experiments=500, draws=400) <= 0.97
    assert coverage(WORLDS["pauses"], 30, experiments=300, draws=400) >= 0.95


def test_equal_arms_show_no_difference() -> None:
    generator = np.random.default_rng(3)
    first, tokens, _ = simulated(generator, 60)
    again = first * generator.lognormal(0.0, 0.02, 60)  # the same work, timed twice
    ratio = paired_ratio(arm(first, tokens), arm(again, tokens), seed=0)
    assert ratio.interval is not None
    assert ratio.interval.low < 1.0 < ratio.interval.high
    assert verdict(ratio.interval) == "no difference shown"
    seconds, tokens, _ = simulated(np.random.default_rng(4), 30)
    ratio = paired_ratio(arm(seconds, tokens), arm(seconds, tokens), seed=0)
    assert ratio.value == 1.0
    assert ratio.interval == Interval(1.0, 1.0, 0.95)
    assert verdict(ratio.interval) == "no difference shown"


def test_seed_determines_the_interval_and_is_kept_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, tokens, method = simulated(np.random.default_rng(5), 40)
    runs = [paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=seed) for seed in (11, 11, 12)]
    assert runs[0] == runs[1]
    assert runs[0].interval != runs[2].interval
    assert (runs[0].seed, runs[0].draws, runs[0].clusters) == (11, 10_000, 40)
    baseline, tokens, method = simulated(np.random.default_rng(6), 40)
    whole = paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1, draws=1000)
    monkeypatch.setattr(interval, "_CELLS_PER_BLOCK", 40 * 7)
    assert paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1, draws=1000) == whole


def test_clusters_widen_the_interval_and_order_does_not_matter() -> None:
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
        assert verdict(ratio.interval) == "too few prompts"
    repeats = paired_ratio(([2.0] * 12, [9] * 12), ([1.0] * 12, [9] * 12), seed=0, clusters=["a", "b"] * 6)
    assert repeats.interval is None  # many rows, two prompts


def test_prompts_without_output_leave_no_interval_when_a_resample_can_be_empty() -> None:
    seconds, tokens = [0.0] * 9 + [4.0], [0] * 9 + [8]
    ratio = paired_ratio((seconds, tokens), (seconds, tokens), seed=0)
    assert ratio.value == 1.0
    assert ratio.interval is None


def test_an_interval_beyond_the_largest_number_is_none() -> None:
    ones = [1.0] * 6
    ratio = paired_ratio(([1e300, *ones[1:]], ones), (ones, ones), seed=0, draws=200)  # 1e300 is in some resamples only
    assert ratio.value == pytest.approx(1e300 / 6)
    assert ratio.interval is None


def test_an_arm_without_tokens_has_no_value() -> None:
    ratio = paired_ratio(([0.0] * 8, [0] * 8), ([0.0] * 8, [0] * 8), seed=0)
    assert math.isnan(ratio.value)
    assert verdict(ratio.interval) == "too few prompts"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.01, 1.2, "faster"), (0.8, 0.99, "slower"), (0.99, 1.2, "no difference shown"),
        (1.0, 1.2, "no difference shown"), (0.8, 1.0, "no difference shown"),
    ],
)  # fmt: skip
def test_verdict_follows_the_interval_and_not_the_value(low: float, high: float, expected: str) -> None:
    assert verdict(Interval(low, high, 0.95)) == expected


def test_many_prompts_take_fewer_draws_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, tokens, method = simulated(np.random.default_rng(10), 40)
    monkeypatch.setattr(interval, "_CELLS", 40 * 2_000)
    assert paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1).draws == 2_000
    monkeypatch.setattr(interval, "_CELLS", 40)
    assert paired_ratio(arm(baseline, tokens), arm(method, tokens), seed=1).draws == 1_000


def test_resamples_without_any_spread_leave_a_finite_interval() -> None:
    # Five prompts alike and one that is not: a third of all resamples lack it, and have no spread at all.
    seconds = [1.0] * 6
    ratio = paired_ratio((seconds, seconds), ([*seconds[:5], 0.5], seconds), seed=0)
    assert ratio.interval is not None
    assert 0 < ratio.interval.low < 1 < ratio.interval.high < math.inf


def test_the_prompts_own_ratios_count_alike_whatever_their_length() -> None:
    # 1x, 2x and 8x; the second has two turns, 3 s against 1.5 s together. One prompt wrote nothing and has no ratio.
    numerator = ([10.0, 1.0, 2.0, 8.0, 0.0], [10, 1, 2, 8, 0])
    denominator = ([10.0, 0.25, 1.25, 1.0, 0.0], [10, 1, 2, 8, 0])
    found = known(per_prompt(numerator, denominator, ["a", "b", "b", "c", "d"]))
    assert (found.median, found.prompts, found.faster) == (pytest.approx(2), 3, 2), "1x is no win"
    assert found.geometric_mean == pytest.approx(16 ** (1 / 3))
    assert per_prompt(([0.0], [0]), ([0.0], [0])) is None


def test_a_slow_machine_cancels_in_a_ratio_of_speedups() -> None:
    baseline, tokens, method = simulated(np.random.default_rng(11), 30)
    first = (arm(baseline, tokens), arm(method, tokens))
    slower = (arm(1.3 * baseline, tokens), arm(1.3 * method, tokens))
    same = relative_ratio(slower, first, seed=0)
    assert same.value == pytest.approx(1)
    assert same.interval is not None
    assert same.interval.high - same.interval.low < 1e-9
    worse = (arm(1.3 * baseline, tokens), arm(1.3 * 1.1 * method, tokens))
    found = relative_ratio(worse, first, seed=0)
    assert found.value == pytest.approx(1 / 1.1)
    assert verdict(found.interval) == "slower"
    speedups = [paired_ratio(*pair, seed=0).value for pair in (worse, first)]
    assert found.value == pytest.approx(speedups[0] / speedups[1])


def test_the_interval_of_independent_arms_covers_the_truth() -> None:
    generator, covered, count = np.random.default_rng(3), 0, 150
    for experiment in range(count):
        arms, units = [], []
        for size, pace in ((24, 0.02), (15, 0.01)):
            tokens = generator.lognormal(4, 0.7, size)
            arms.append((list(tokens * pace * generator.lognormal(-0.02, 0.2, size)), list(tokens)))
            units.append([str(at) for at in range(size)])
        found = independent_ratio(arms[0], arms[1], (units[0], units[1]), seed=experiment)
        covered += known(found.interval).low <= 2.0 <= known(found.interval).high
    assert 0.9 <= covered / count <= 0.99  # 150 experiments of an interval of 95% have a standard deviation of 1.8%


def test_independent_arms_need_six_units_each() -> None:
    few, many = (([1.0] * count, [10.0] * count) for count in (5, 8))
    units = [str(at) for at in range(8)]
    assert independent_ratio(few, many, (units[:5], units), seed=0).interval is None
    assert independent_ratio(many, many, (["0"] * 8, units), seed=0).interval is None
    assert known(independent_ratio(many, many, (units, units), seed=0).interval).high == pytest.approx(1.0)
