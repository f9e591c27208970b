"""Tokens seen once: they say nothing of a sampler, so they add nothing to what the two-sample test could have told."""

from __future__ import annotations

import math

import pytest

from specbench.results.stats import two_sample


def test_answers_that_go_on_alone_make_the_detectable_distance_no_smaller() -> None:
    # Of each sampler ten answers begin alike; the other ten begin alike too, or each for itself.
    alike = {"p": [[1]] * 10 + [[2]] * 10}
    apart = [{"p": [[1]] * 10 + [[first + number] for number in range(10)]} for first in (100, 200)]
    whole = two_sample(alike, alike, seed=0).detectable
    half = two_sample(apart[0], apart[1], seed=0).detectable
    assert whole is not None
    assert half is not None
    assert half == pytest.approx(whole * math.sqrt(2))
