"""Differences of means over the same documents: hand-computed values, and intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from specbench.analysis.stats import minimum_clusters, paired_mean


def test_it_is_a_sum_over_a_sum() -> None:
    found = paired_mean([3.0, 8.0], [1.0, 2.0], weights=[1.0, 3.0], seed=0)
    assert (found.value, found.interval, found.clusters) == (2.0, None, 2)
    assert paired_mean([3.0, 8.0], [1.0, 2.0], seed=0).value == 4.0


def test_from_six_documents_on_there_is_an_interval() -> None:
    for count in (minimum_clusters() - 1, minimum_clusters()):
        values = [float(at * at) for at in range(count)]
        found = paired_mean(values, [0.0] * count, seed=0, draws=200)
        assert (found.interval is not None) == (count == minimum_clusters())


def test_the_interval_is_about_the_value_and_narrower_where_documents_agree() -> None:
    draw = np.random.default_rng(1)
    alike, unlike = (paired_mean(draw.normal(1, spread, 40).tolist(), [0.0] * 40, seed=0) for spread in (0.1, 1.0))
    for found in (alike, unlike):
        assert found.interval is not None
        assert found.interval.low + found.interval.high == pytest.approx(2 * found.value)
    assert alike.interval is not None
    assert unlike.interval is not None
    assert 5 < (unlike.interval.high - unlike.interval.low) / (alike.interval.high - alike.interval.low) < 20
    same = paired_mean([0.5] * 9, [0.25] * 9, seed=0)
    assert same.interval is not None
    assert (same.interval.low, same.interval.high) == (0.25, 0.25)


def test_what_a_document_weighs_counts_in_the_interval() -> None:
    draw = np.random.default_rng(3)
    weights = draw.uniform(1, 50, 300)
    alike = paired_mean((0.3 * weights).tolist(), [0.0] * 300, weights=weights.tolist(), seed=0, draws=200).interval
    assert alike is not None
    assert (alike.low, alike.high) == pytest.approx((0.3, 0.3)), "each differs by as much a byte"
    differences = weights * draw.normal(0.3, 0.2, 300)
    found = paired_mean(differences.tolist(), [0.0] * 300, weights=weights.tolist(), seed=0, draws=2000)
    assert found.interval is not None
    error = np.sqrt(np.square(differences - found.value * weights).sum()) / weights.sum()
    assert 1.8 < (found.interval.high - found.value) / error < 2.15, "of so many documents it is the normal one"


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    draw, held = np.random.default_rng(7), 0
    for _ in range(200):
        lengths = draw.lognormal(3, 0.7, 20)
        differences = lengths * draw.normal(0.3, 0.2, 20)
        interval = paired_mean(differences.tolist(), [0.0] * 20, weights=lengths.tolist(), seed=0, draws=400).interval
        assert interval is not None
        held += interval.low <= 0.3 <= interval.high
    assert 0.90 <= held / 200 <= 0.99
