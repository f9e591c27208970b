"""Statistics: intervals over prompts, statistical power, and verdicts.

There is no verdict without an interval, and no interval for so few prompts that its level would be wrong.
"""

from specbench.analysis.stats.interval import Interval, minimum_clusters
from specbench.analysis.stats.means import MeanDifference, paired_mean
from specbench.analysis.stats.multiple import Many, Paired, many
from specbench.analysis.stats.power import detectable, prompts_needed
from specbench.analysis.stats.proportions import (
    Difference,
    difference_verdict,
    mcnemar,
    paired_difference,
    proportion_interval,
    sign_test,
)
from specbench.analysis.stats.ratio import (
    INTERVAL,
    PerPrompt,
    Ratio,
    Verdict,
    independent_ratio,
    paired_ratio,
    per_prompt,
    relative_ratio,
    verdict,
)
from specbench.analysis.stats.two_sample import TwoSample, two_sample

__all__ = [
    "INTERVAL",
    "Difference",
    "Interval",
    "Many",
    "MeanDifference",
    "Paired",
    "PerPrompt",
    "Ratio",
    "TwoSample",
    "Verdict",
    "detectable",
    "difference_verdict",
    "independent_ratio",
    "many",
    "mcnemar",
    "minimum_clusters",
    "paired_difference",
    "paired_mean",
    "paired_ratio",
    "per_prompt",
    "prompts_needed",
    "proportion_interval",
    "relative_ratio",
    "sign_test",
    "two_sample",
    "verdict",
]
