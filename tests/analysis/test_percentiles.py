"""Percentiles of waiting times, against plain counting."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from support.decoders import Clock, ToyEngine, request, runner, toy
from support.runs import record

from specbench.analysis.stats.percentiles import percentiles, waiting_times


@pytest.mark.parametrize("count", [1, 9, 10, 19, 20, 99, 100, 257])
def test_percentiles_are_order_statistics(count: int) -> None:
    rng = random.Random(count)
    values = [rng.expovariate(1) for _ in range(count)]
    found = percentiles([(f"p{at}", [value]) for at, value in enumerate(values)])
    assert found is not None
    assert found.count == count
    for share, name, needed in ((0.5, "p50", 1), (0.9, "p90", 10), (0.95, "p95", 20), (0.99, "p99", 100)):
        estimate = getattr(found, name)
        assert (estimate is None) == (count < needed)
        if estimate is None:
            continue
        ordered, place = sorted(values), round(share * count, 9)
        pair = (ordered[math.ceil(place) - 1], ordered[min(math.floor(place), count - 1)])
        assert estimate.value == pytest.approx(sum(pair) / 2)
        if share == 0.5:
            assert estimate.value == pytest.approx(np.median(values))
        assert (estimate.interval is None) == (count < 6)
        if estimate.interval:
            assert estimate.low <= estimate.value <= estimate.high


def test_values_of_a_prompt_are_resampled_together() -> None:
    rng = random.Random(0)
    levels = [rng.gauss(0, 1) for _ in range(12)]
    apart = [(f"p{at}/{n}", [level + rng.gauss(0, 0.01)]) for at, level in enumerate(levels) for n in range(40)]
    together = [(name.partition("/")[0], values) for name, values in apart]
    wide, narrow = (percentiles(samples) for samples in (together, apart))
    assert wide
    assert narrow
    assert wide.p50
    assert narrow.p50
    assert wide.p50.interval
    assert narrow.p50.interval
    assert wide.p50.value == narrow.p50.value
    assert np.ptp(wide.p50.interval) > 2 * np.ptp(narrow.p50.interval)
    assert percentiles(together) == wide, "the same values have the same interval"


def test_the_interval_covers_the_true_median() -> None:
    rng = random.Random(1)
    inside = 0
    for _ in range(100):
        found = percentiles([(f"p{at}", [rng.expovariate(1)]) for at in range(40)])
        assert found
        assert found.p50
        assert found.p50.interval
        low, high = found.p50.interval
        inside += low <= math.log(2) <= high
    assert inside >= 88


def test_each_time_is_read_from_the_records() -> None:
    steps = [0.5, 0.25, 0.25]
    first = record("m", "p", tokens=9, forwards=3, decode_s=1.0).model_copy(
        update={"step_s": steps, "accepted_lengths": [4, 0, 4]}
    )
    second = record("m", "q", tokens=1, forwards=0, decode_s=0.0)
    found = waiting_times([first, second])
    counts = [each.count if each else 0 for each in (found.ttft_s, found.tpot_s, found.itl_s, found.latency_s)]
    assert counts == [2, 1, 2, 2], "a forward that brought no token is no arrival"
    medians = [each.p50.value for each in (found.tpot_s, found.itl_s) if each and each.p50]
    assert medians == [1 / 8, (0.25 + 0.5) / 2]
    assert waiting_times([]).latency_s is None


def test_users_wait_for_whole_steps_of_all_sequences() -> None:
    clock = Clock()
    engine = ToyEngine(clock, slots=2, fixed=1000)
    records = list(runner(engine, concurrency=2).segment(toy(), [request(1, 6), request(2, 3), request(3, 4)], 0))
    for each in records:
        assert each.gap_s is not None
        assert sum(each.gap_s) == pytest.approx(each.decode_s)
        assert each.step_s is not None
        assert sum(each.step_s) < sum(each.gap_s)
    (alone,) = runner(ToyEngine(clock, fixed=1000)).segment(toy(), [request(1, 6)], 0)
    assert alone.gap_s is None
    assert "gap_s" not in alone.model_dump()
    assert alone.step_s is not None
    assert alone.arrivals_s == alone.step_s
