"""Costs, bounds, knee and budget against figures computed by hand, and step times between measured ones."""

from __future__ import annotations

import math
import random
from statistics import fmean
from typing import Any

import pytest
from support.wording import wording

from specbench.hardware.roofline import (
    AttentionLayers,
    Ceilings,
    Cost,
    Experts,
    ModelShape,
    StepPoint,
    StepTimes,
    bound_s,
    free_rows,
    knee,
    step_cost,
)


def shape(**changes: Any) -> ModelShape:
    """100 weights, a head of 40, one layer of 4 query and 2 KV heads with keys of 3 and values of 5 elements."""
    values: dict[str, Any] = {
        "matmul": 100, "head": 40, "embedding": 40, "embedding_width": 4, "tied": False, "small": 6,
        "attention": (AttentionLayers(layers=1, query_heads=4, kv_heads=2, key_size=3, value_size=5),),
        "weight_bytes": 2, "cache_bytes": 2,
    }  # fmt: skip
    return ModelShape.model_validate({**values, **changes})


def point(rows: int, context: int, slots: int, seconds: float) -> StepPoint:
    return StepPoint(
        rows=rows, context=context, slots=slots, seconds=seconds, low_s=seconds / 2, high_s=2 * seconds, steps=5
    )


# A machine that moves and computes what it is asked for in round numbers.
DEVICE = Ceilings(bytes_per_s=1000.0, flops_per_s=4000.0)


def test_the_cost_of_rows_and_slots_by_hand() -> None:
    cost = step_cost(shape(), rows=1, context=9)
    # Scores and values: 4 heads × (3 + 5) × 10 keys. Weights, then 9 cached tokens read, one written and read.
    assert cost.flops == 2 * (100 + 40 + 4 * 8 * 10)
    assert cost.bytes == 2 * (100 + 40 + 6 + 4) + 2 * (2 * 8 * (9 + 2))
    assert cost.intensity == cost.flops / cost.bytes
    cost = step_cost(shape(), rows=3, context=9, slots=2)
    assert cost.flops == 2 * 6 * (100 + 40 + 4 * 8 * (9 + 3))
    assert cost.bytes == 2 * (100 + 40 + 6 + 6 * 4) + 2 * (2 * 2 * 8 * (9 + 6))

    def layers(count: int) -> ModelShape:
        return shape(attention=(AttentionLayers(layers=count, query_heads=4, kv_heads=2, key_size=3, value_size=5),))

    one, three, none = (step_cost(made, 2, 9) for made in (layers(1), layers(3), shape(attention=())))
    assert three.flops - none.flops == 3 * (one.flops - none.flops) > 0
    assert three.bytes - none.bytes == 3 * (one.bytes - none.bytes) > 0
    assert layers(3).token_bytes == 3 * layers(1).token_bytes


def test_experts_are_read_as_often_as_different_ones_are_hit() -> None:
    experts = Experts(count=4, active=1, elements=10)
    assert experts.distinct(1) == 1
    assert experts.distinct(2) == pytest.approx(1 + 3 / 4)  # the second row finds another one three times in four
    assert experts.distinct(1000) == pytest.approx(4)
    assert Experts(count=8, active=8, elements=10).distinct(1) == 8
    mixed, plain = shape(experts=experts), shape()
    assert step_cost(mixed, 2, 9).flops - step_cost(plain, 2, 9).flops == 2 * 2 * 1 * 10
    assert step_cost(mixed, 2, 9).bytes - step_cost(plain, 2, 9).bytes == pytest.approx(2 * 1.75 * 10)
    mixed, plain = shape(experts=Experts(count=4, active=1, elements=10)), shape()
    more = step_cost(mixed, rows=1, context=9, slots=2).bytes - step_cost(plain, rows=1, context=9, slots=2).bytes
    assert more == pytest.approx(2 * 1.75 * 10)


@pytest.mark.parametrize(("count", "active", "rows"), [(4, 1, 3), (8, 2, 5), (64, 6, 30)])
def test_distinct_experts_are_those_of_routing_by_lot(count: int, active: int, rows: int) -> None:
    rng = random.Random(0)
    hit = [len({e for _ in range(rows) for e in rng.sample(range(count), active)}) for _ in range(4000)]
    assert Experts(count=count, active=active, elements=1).distinct(rows) == pytest.approx(fmean(hit), rel=0.01)


def test_parameters_cache_and_bound_by_hand() -> None:
    assert shape().parameters == 100 + 40 + 40 + 6
    assert shape(experts=Experts(count=4, active=1, elements=10), embedding=0).parameters == 100 + 40 + 6 + 40
    assert shape().token_bytes == 2 * 2 * 8
    assert bound_s(Cost(flops=4000, bytes=3000), DEVICE) == 3
    assert bound_s(Cost(flops=8000, bytes=1000), DEVICE) == 2
    narrow = step_cost(shape(weight_bytes=0.5), 1, 9).bytes
    assert step_cost(shape(weight_bytes=0.5, cache_bytes=1), 1, 9).bytes == narrow - 2 * 8 * 11
    assert narrow == 0.5 * 150 + 2 * 2 * 8 * 11
    sliding = AttentionLayers(layers=1, query_heads=4, kv_heads=2, key_size=3, value_size=5, window=8)
    slid = shape(attention=(sliding,))
    assert step_cost(slid, 2, 7) == step_cost(shape(), 2, 7)  # a row sees itself and seven before it
    assert step_cost(slid, 2, 500) == step_cost(shape(), 2, 7)


def test_the_knee_is_the_first_row_that_computes_longer_than_it_moves() -> None:
    found = knee(shape(), DEVICE, context=9)
    assert found.intensity == 4
    assert found.rows is not None
    assert found.rows > 1
    sides = [step_cost(shape(), found.rows + more, 9).intensity for more in (-1, 0)]
    assert sides[0] < 4 <= sides[1]
    assert knee(shape(), Ceilings(bytes_per_s=1e9, flops_per_s=1.0), 9).rows == 1
    assert knee(shape(), Ceilings(bytes_per_s=1.0, flops_per_s=1e30), 9).rows is None


@pytest.mark.parametrize(
    ("curve", "rows"),
    [
        ({1: 1.0, 2: 1.05, 4: 1.1, 8: 1.11}, 4),
        ({1: 1.0, 2: 1.3, 4: 1.05, 8: 2.0}, 4),  # two rows can be padded to four
        ({1: 1.0, 2: 1.2}, 1),
        ({8: 0.9, 1: 1.0}, 8),
        ({1: 1.0}, 1),
    ],
)
def test_free_rows(curve: dict[int, float], rows: int) -> None:
    assert free_rows(curve) == rows


def bound(rows: int, context: int, slots: int = 1) -> float:
    return bound_s(step_cost(shape(), rows, context, slots), DEVICE)


MEASURED = [
    point(1, 15, 1, 2.0), point(16, 15, 1, 5.0), point(64, 15, 1, 30.0), point(1, 255, 1, 20.0),
    point(16, 255, 1, 50.0), point(1, 15, 4, 3.0), point(16, 15, 4, 40.0),
]  # fmt: skip


def test_every_measured_step_is_met_and_one_slot_is_needed() -> None:
    times = StepTimes(shape(), DEVICE, MEASURED)
    for one in MEASURED:
        assert times.seconds(one.rows, one.context, one.slots) == pytest.approx(one.seconds)
        assert times.covers(one.rows, one.context, one.slots)
    with pytest.raises(ValueError, check=wording):
        StepTimes(shape(), DEVICE, [point(1, 15, 4, 1.0)])


def test_step_times_between_and_beyond_what_was_measured() -> None:
    times = StepTimes(shape(), DEVICE, MEASURED)
    share = math.sqrt(bound(1, 15) / 2.0 * bound(16, 15) / 5.0)  # 4 lies in the middle of 1 and 16
    assert times.seconds(4, 15) == pytest.approx(bound(4, 15) / share)
    share = math.sqrt(bound(1, 15) / 2.0 * bound(1, 255) / 20.0)  # 1 + 63 in the middle of 1 + 15 and 1 + 255
    assert times.seconds(1, 63) == pytest.approx(bound(1, 63) / share)
    times = StepTimes(shape(), DEVICE, MEASURED)
    assert times.seconds(512, 15) == pytest.approx(30.0 * bound(512, 15) / bound(64, 15))
    assert times.seconds(1, 4095) == pytest.approx(20.0 * bound(1, 4095) / bound(1, 255))
    # 64 rows were measured at the short context only: the long one goes on with what it has.
    assert times.seconds(64, 255) == pytest.approx(50.0 * bound(64, 255) / bound(16, 255))


def test_slots_correct_the_share_of_one_slot_with_all_their_rows() -> None:
    times = StepTimes(shape(), DEVICE, MEASURED)
    without = StepTimes(shape(), DEVICE, [one for one in MEASURED if one.slots == 1])
    assert without.seconds(4, 15, 4) == pytest.approx(bound(4, 15, 4) / (bound(16, 15) / 5.0))
    correction = times.seconds(1, 15, 4) / without.seconds(1, 15, 4)
    assert times.seconds(1, 15, 2) / without.seconds(1, 15, 2) == pytest.approx(math.sqrt(correction))
    assert times.seconds(1, 15, 8) / without.seconds(1, 15, 8) == pytest.approx(correction)


@pytest.mark.parametrize(
    ("asked", "inside"),
    [
        *(((4, 100, 1), True), ((64, 15, 1), True), ((64, 100, 1), False), ((1, 14, 1), False), ((1, 256, 1), False)),
        *(((4, 15, 2), True), ((4, 100, 2), False), ((1, 15, 8), False), ((32, 15, 2), False)),
    ],
)
def test_it_tells_inside_from_outside(asked: tuple[int, int, int], inside: bool) -> None:
    assert StepTimes(shape(), DEVICE, MEASURED).covers(*asked) is inside
