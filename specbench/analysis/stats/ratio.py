"""Interval of a speedup by a paired, studentised bootstrap over prompts, and the verdict from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specbench.analysis.stats.interval import (
    Clusters,
    Floats,
    Interval,
    affordable,
    cluster_sums,
    minimum_clusters,
    resamples,
)
from specbench.analysis.stats.proportions import sign_test

Verdict = Literal["faster", "slower", "no difference shown", "too few prompts"]

#: Name of the method in summaries. Summaries without a name used the percentile bootstrap.
INTERVAL = "symmetric bootstrap-t on the log ratio, over what was timed apart"

Arm = tuple[Sequence[float], Sequence[float]]  # seconds [n], tokens [n]


@dataclass(frozen=True)
class Ratio:
    """A pooled speedup with its interval; nan if an arm has no tokens or no time.

    Without an interval there is no verdict. ``clusters`` counts the resampled units, ``log_se`` is the standard error
    of log ``value``.
    """

    value: float
    interval: Interval | None
    clusters: int
    draws: int
    seed: int
    log_se: float | None = None


@dataclass(frozen=True)
class PerPrompt:
    """Ratios of single prompts, all with equal weight: how evenly a speedup is distributed.

    Not for headlines, because short answers weigh as much as long ones.
    """

    median: float
    geometric_mean: float
    prompts: int
    faster: int  # prompts with a ratio above 1
    p_value: float  # two-sided sign test of faster and slower prompts


def paired_ratio(
    numerator: Arm,
    denominator: Arm,
    *,
    seed: int,
    draws: int = 10_000,
    clusters: Clusters | None = None,
    level: float = 0.95,
) -> Ratio:
    """Pooled time per output token of one arm divided by that of the other, with a paired bootstrap interval.

    value = (Σ a_time / Σ a_tokens) / (Σ b_time / Σ b_tokens). With AR as numerator this is the speedup of the method;
    if both arms emit the same tokens it is the ratio of total times. It is a ratio of sums, not a mean of per-prompt
    ratios, in which short answers would weigh as much as long ones.

    Assumes that the prompts are an independent random sample of the prompts of interest. Row i of both arms is the same
    request (prompt, turn, repeat), so what makes a prompt slow affects both arms and cancels. The interval does not
    cover drift of the machine between two runs.

    If sequences are stepped together, the timed unit is a block of prompts, and blocks are resampled: see
    :func:`specbench.analysis.blocks.timing_units`.

    The interval is symmetric about the logarithm of the value: ± q standard errors, the standard error by the delta
    method (from the influence functions of the sums), q the quantile of |log ratio* − log ratio| / standard error* over
    resamples. Simulated coverage of the 95% interval in percent (1,000 experiments with known truth per figure,
    ``benchmarks/interval_coverage.py``; the percentile bootstrap has 81 to 86 with 6 prompts and 88 to 91 with 20, and
    BCa is not better):

    ============================================================  =====  =====  =====  =====  =====
    prompts, or blocks of them                                        6     12     20     40    164
    ============================================================  =====  =====  =====  =====  =====
    lengths lognormal, σ 0.7                                       94.9   95.0   95.2   94.2   95.9
    lengths lognormal, σ 1.2, cut at 1,024; long ones gain more    91.7   94.6   93.8   95.2   95.1
    two turns a prompt, the method's of other lengths than AR's    93.5   94.8   93.7   93.9   95.4
    a method against itself, one request in twenty 30 % slower     97.3   99.0   99.5   99.0   96.4
    blocks of prompts, 4 sequences stepped together                96.5   95.0   96.2   95.2
    blocks of prompts, 16 sequences stepped together               96.1   96.4   96.3   94.7
    ============================================================  =====  =====  =====  =====  =====

    Args:
        numerator: (seconds [n], tokens [n]) of the baseline, an entry per request. ``decode_s`` and
            ``output_tokens − 1`` for the decode speedup, ``latency_s`` and ``output_tokens`` for end to end.
        denominator: the same for the method, rows in the same order.
        draws: bootstrap resamples; fewer for more than 3,000 prompts, see ``Ratio.draws``.
        clusters: [n] prompt id of each row. Rows of one prompt (its turns and repeats) are resampled together, because
            they are not independent. By default every row is its own prompt.

    Source: Hall, On symmetric bootstrap confidence intervals, JRSS B 50 (1988); Efron & Tibshirani, An Introduction to
    the Bootstrap, §12.5 (bootstrap-t) and §8.6 (resampling of independent units).
    """
    return _pooled_ratio((*numerator, *denominator), (1, -1, -1, 1), seed, draws, clusters, level)


def independent_ratio(numerator: Arm, denominator: Arm, clusters: tuple[Clusters, Clusters], *, seed: int) -> Ratio:
    """As :func:`paired_ratio`, of arms whose requests have nothing in common; ``clusters`` has the units of each.

    The interval adds the arms' own on the log scale: Zou & Donner, Construction of confidence limits about effect
    measures, Stat. Med. 27 (2008).
    """
    own = []
    for (seconds, tokens), unit in zip((numerator, denominator), clusters, strict=True):
        ones = [1.0] * len(tokens)
        own.append(paired_ratio((seconds, tokens), (ones, ones), seed=seed, clusters=unit))
    a, b = own
    value, interval = a.value / b.value, None
    if a.interval and b.interval:
        half = math.hypot(*(math.log(each.interval.high / each.value) for each in own if each.interval))
        interval = Interval(value * math.exp(-half), value * math.exp(half), a.interval.level)
    se = math.hypot(a.log_se, b.log_se) if a.log_se is not None and b.log_se is not None else None
    return Ratio(value, interval, min(a.clusters, b.clusters), min(a.draws, b.draws), seed, se)


def relative_ratio(
    ours: tuple[Arm, Arm],
    theirs: tuple[Arm, Arm],
    *,
    seed: int,
    draws: int = 10_000,
    clusters: Clusters | None = None,
    level: float = 0.95,
) -> Ratio:
    """The speedup of one pair of arms divided by that of another pair, on the same requests.

    Arguments as in :func:`paired_ratio`. With AR and a method of two runs as pairs, a change of the machine's speed
    between the runs cancels.
    """
    columns = [column for pair in (ours, theirs) for arm in pair for column in arm]
    return _pooled_ratio(columns, (1, -1, -1, 1, -1, 1, 1, -1), seed, draws, clusters, level)


def per_prompt(numerator: Arm, denominator: Arm, clusters: Clusters | None = None) -> PerPrompt | None:
    """Median and geometric mean of the prompts' own ratios; None if no prompt has one."""
    sums = cluster_sums(columns_of((*numerator, *denominator)), clusters)
    a_time, a_tokens, b_time, b_tokens = sums[:, (sums > 0).all(axis=0)]
    if not a_time.size:
        return None
    ratios = (a_time * b_tokens) / (a_tokens * b_time)
    middle, mean = float(np.median(ratios)), float(np.exp(np.log(ratios).mean()))
    faster, slower = int((ratios > 1).sum()), int((ratios < 1).sum())
    return PerPrompt(middle, mean, ratios.size, faster, sign_test(faster, slower))


def verdict(interval: Interval | None, among: Interval | None = None) -> Verdict:
    """The verdict on a speedup: "faster" needs an interval that excludes 1.

    Tables, sweeps, contours and advice all use this function, so that they cannot contradict each other. ``among`` is a
    row's joint interval (:func:`specbench.analysis.stats.many`), because the fastest of many rows may only be the
    luckiest.
    """
    if interval is None:
        return "too few prompts"
    ends = [interval] if among is None else [interval, among]
    if all(end.low > 1.0 for end in ends):
        return "faster"
    if all(end.high < 1.0 for end in ends):
        return "slower"
    return "no difference shown"


def columns_of(columns: Sequence[Sequence[float]]) -> Floats:
    """Columns as one array [m, n]; ValueError if a value is negative or not finite."""
    made = np.array([*columns], dtype=np.float64)
    if not np.isfinite(made).all() or (made < 0).any():
        raise ValueError("times and token counts must be finite and not negative")
    return made


def _pooled_ratio(
    columns: Sequence[Sequence[float]],
    signs: Sequence[int],
    seed: int,
    draws: int,
    clusters: Clusters | None,
    level: float,
) -> Ratio:
    """The product of the columns' sums, each to the power of its sign."""
    sums = cluster_sums(columns_of(columns), clusters)
    count, totals = sums.shape[1], sums.sum(axis=1)
    powers = np.array(signs)
    if not (totals > 0).all():
        return Ratio(math.nan, None, count, draws, seed)
    value = float(totals[powers > 0].prod() / totals[powers < 0].prod())
    if count < 2:
        return Ratio(value, None, count, draws, seed)
    se = float(standard_error(sums, totals, powers))
    interval = None
    if (sums > 0).all(axis=0).sum() >= minimum_clusters(level):  # prompts without output do not count
        draws = affordable(draws, count)
        interval = _studentised(sums, powers, value, se, draws, seed, level)
    return Ratio(value, interval, count, draws, seed, se)


def standard_error(columns: Floats | Sequence[Floats], totals: Floats, powers: Floats) -> Floats:
    """Delta-method standard error of the log ratio of m columns [..., k] with sums [m, ...].

    Terms with positive and negative powers are summed separately, so that two equal arms give exactly 0.
    """
    raised, lowered = (
        sum(
            column / total[..., None]
            for column, total, power in zip(columns, totals, powers, strict=True)
            if power == wanted
        )
        for wanted in (1, -1)
    )
    influence = raised - lowered
    count = influence.shape[-1]
    return np.sqrt(np.square(influence).sum(axis=-1) * (count / (count - 1)))


def _studentised(
    sums: Floats, powers: Floats, value: float, se: float, draws: int, seed: int, level: float
) -> Interval | None:
    """Hall's symmetric bootstrap-t; None if a resample has no tokens or no time."""
    if se == 0.0:
        return Interval(value, value, level)
    count = sums.shape[1]
    distances = np.empty(draws, dtype=np.float64)
    for block, picked in resamples(count, draws, seed):
        columns = [column[picked] for column in sums]
        totals = np.stack([column.sum(axis=1) for column in columns])
        if not (totals > 0).all():
            return None
        shift = np.log(totals[powers > 0].prod(axis=0) / totals[powers < 0].prod(axis=0)) - math.log(value)
        # A resample of few prompts may have hardly any spread; 1/k² of the sample's variance keeps the quotient finite
        # and costs half a percent of coverage at k = 6.
        spread = np.square(standard_error(columns, totals, powers))
        distances[block] = np.abs(shift) / np.sqrt(spread + (se * se - spread) / count**2)
    half = float(np.quantile(distances, level)) * se
    if half + abs(math.log(value)) > largest_log():
        return None  # the interval would overflow
    return Interval(value * math.exp(-half), value * math.exp(half), level)


def largest_log() -> float:
    """Logarithm of the largest representable ratio."""
    return math.log(np.finfo(np.float64).max)
