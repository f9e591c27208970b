"""How many resamples are drawn: all that are asked for up to thousands of prompts, a thousand at least."""

from __future__ import annotations

import numpy as np
import pytest

from specbench.analysis.stats.proportions import paired_difference


def test_the_interval_of_a_difference_leaves_out_as_much_on_either_side() -> None:
    mine, other = [True] * 300 + [False] * 300, [False] * 300 + [True] * 300
    interval = paired_difference(mine, other, seed=0).interval
    assert interval is not None
    # Of so many, means are normal: 1.96 standard errors on either side.
    assert (interval.low, interval.high) == pytest.approx((-1.96 / np.sqrt(602), 1.96 / np.sqrt(602)), rel=0.04)
