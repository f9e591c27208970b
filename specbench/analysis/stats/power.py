"""What a number of prompts can tell: the difference that would be seen, and the prompts that a difference needs."""

from __future__ import annotations

import math
from statistics import NormalDist

from specbench.analysis.stats.interval import minimum_clusters
from specbench.analysis.stats.ratio import Ratio

#: Chance of seeing a difference that is there.
POWER = 0.8

#: Prompts that nobody will run: a difference that takes more of them is none.
MOST = 1_000_000


def detectable(ratio: Ratio, power: float = POWER) -> float | None:
    """The smallest relative difference that prompts like these tell from none, as a share: 0.03 for 3 %.

    A method that is truly so much faster gets an interval that excludes 1 with probability ``power``. It follows from
    the width of the interval alone; None without one.
    """
    if ratio.interval is None or ratio.log_se is None:
        return None
    half = math.log(ratio.interval.high / ratio.value)
    return math.expm1(half + NormalDist().inv_cdf(power) * ratio.log_se)


def prompts_needed(ratio: Ratio, difference: float, power: float = POWER, level: float = 0.95) -> int | None:
    """How many prompts like these it takes to tell a relative difference (0.03 for 3 %) from none; from few, a rough
    guess.

    At least :func:`minimum_clusters`; None where the spread is unknown or 0, and where it would take more than
    :data:`MOST`.
    """
    if not ratio.log_se:
        return None
    normal = NormalDist()
    quantile = normal.inv_cdf((1.0 + level) / 2.0)
    errors = quantile + normal.inv_cdf(power)
    needed = ratio.clusters * (errors * ratio.log_se / math.log1p(difference)) ** 2
    if needed > MOST:
        return None
    # Half the squared quantile more, because the spread has to be estimated from the same prompts (Guenther 1981).
    return max(minimum_clusters(level), math.ceil(needed + quantile**2 / 2))
