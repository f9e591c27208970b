"""Statistical power: the smallest detectable difference, and the number of prompts that a difference needs."""

from __future__ import annotations

import math
from statistics import NormalDist

from specbench.analysis.stats.interval import minimum_clusters
from specbench.analysis.stats.ratio import Ratio

#: Probability of detecting a difference that exists.
POWER = 0.8

#: Most prompts worth suggesting; for smaller differences no number is given.
MOST = 1_000_000


def detectable(ratio: Ratio, power: float = POWER) -> float | None:
    """The smallest relative difference that prompts like these can detect, as a share: 0.03 for 3%.

    A method that is faster by this much gets an interval that excludes 1 with probability ``power``. Computed from the
    width of the interval; None without an interval.
    """
    if ratio.interval is None or ratio.log_se is None:
        return None
    half = math.log(ratio.interval.high / ratio.value)
    return math.expm1(half + NormalDist().inv_cdf(power) * ratio.log_se)


def prompts_needed(ratio: Ratio, difference: float, power: float = POWER, level: float = 0.95) -> int | None:
    """How many prompts like these are needed to detect a relative difference (0.03 for 3%); rough for few prompts.

    At least :func:`minimum_clusters`; None if the spread is unknown or 0, or if more than :data:`MOST` are needed.
    """
    if not ratio.log_se:
        return None
    normal = NormalDist()
    quantile = normal.inv_cdf((1.0 + level) / 2.0)
    errors = quantile + normal.inv_cdf(power)
    needed = ratio.clusters * (errors * ratio.log_se / math.log1p(difference)) ** 2
    if needed > MOST:
        return None
    # Add half the squared quantile, because the spread is estimated from the same prompts (Guenther 1981).
    return max(minimum_clusters(level), math.ceil(needed + quantile**2 / 2))
