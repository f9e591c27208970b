"""Intervals for shares of right answers, and for the paired difference of two shares on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from specbench.analysis.stats.interval import Clusters, Interval, affordable, cluster_sums, minimum_clusters, resamples

DifferenceVerdict = Literal["more right", "fewer right", "no difference shown", "too few prompts"]


@dataclass(frozen=True)
class Difference:
    """Difference of two shares of right answers on the same prompts: mean over prompts, in [−1, 1].

    ``gained`` and ``lost`` count prompts on which the first did better or worse; ``p_value`` is :func:`mcnemar` of
    them.
    """

    value: float
    interval: Interval | None
    gained: int
    lost: int
    p_value: float
    clusters: int
    draws: int
    seed: int


def paired_difference(
    mine: Sequence[bool],
    other: Sequence[bool],
    *,
    seed: int,
    draws: int = 10_000,
    clusters: Clusters | None = None,
    level: float = 0.95,
) -> Difference:
    """Difference of two shares of right answers to the same requests, with a paired bootstrap interval over prompts.

    One gained and one lost prompt are added before resampling (Bonett and Price's adjustment). Otherwise two arms that
    never differ would have the interval [0, 0] for any number of prompts. Simulated coverage of the 95% interval with 1
    to 25% of prompts gained or lost: 94.7 to 98.8% with 164 prompts, more with fewer prompts, up to 100% if hardly any
    can differ (``benchmarks/interval_coverage.py``).

    Args:
        mine, other: [n] right or wrong, one entry per request, in the same order.
        clusters: [n] prompt id of each request; the repeats of a prompt are averaged.

    Source: McNemar, Psychometrika 12 (1947); Bonett and Price, Journal of Educational and Behavioral Statistics 37
    (2012), for the two added prompts.
    """
    columns = np.array([mine, other, np.ones(len(mine))], dtype=np.float64)
    if not columns.size:
        raise ValueError("no requests to compare")
    right, reference, requests = cluster_sums(columns, clusters)
    differences = (right - reference) / requests
    count = differences.size
    gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
    interval = None
    if count >= minimum_clusters(level):
        draws = affordable(draws, count)
        padded = np.append(differences, (1.0, -1.0))
        means = np.empty(draws)
        for block, picked in resamples(padded.size, draws, seed):
            means[block] = padded[picked].mean(axis=1)
        low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        interval = Interval(float(low), float(high), level)
    value = float(differences.mean())
    return Difference(value, interval, gained, lost, mcnemar(gained, lost), count, draws, seed)


def difference_verdict(difference: Difference) -> DifferenceVerdict:
    """The verdict on a difference of shares; more or fewer need an interval that excludes 0."""
    if difference.interval is None:
        return "too few prompts"
    if difference.interval.low > 0:
        return "more right"
    return "fewer right" if difference.interval.high < 0 else "no difference shown"


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test: two-sided p-value of so uneven a split if gains and losses are equally likely."""
    return sign_test(gained, lost)


def sign_test(more: int, less: int) -> float:
    """Sign test: two-sided p-value of so uneven a split if both signs are equally likely; ties are left out.

    Source: Dixon and Mood, The statistical sign test, JASA 41 (1946).
    """
    count = more + less
    tail = sum(math.comb(count, at) for at in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**count)


def proportion_interval(successes: int, total: int, level: float = 0.95) -> Interval | None:
    """Wilson score interval of a proportion, such as pass@1 with one sample per problem; None when ``total`` is 0.

    For display only: the arms are not paired, so overlapping intervals do not prove equality.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total}")
    if total == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + level / 2.0)
    share, shrink = successes / total, 1.0 + z * z / total
    centre = (share + z * z / (2 * total)) / shrink
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / shrink
    # At 0 and at `total` one end is exactly 0 or 1, which rounding would miss.
    low = 0.0 if successes == 0 else centre - half
    return Interval(low, 1.0 if successes == total else centre + half, level)
