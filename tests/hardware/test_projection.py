"""Projection onto another device: from shares and from excess over the bound, and what a run comes to there."""

from __future__ import annotations

import math

import pytest
from support.asserting import known

from specbench.hardware import gpus
from specbench.hardware.projection import Projection, project
from specbench.hardware.roofline import AttentionLayers, Ceilings, ModelShape, StepPoint, bound_s, step_cost
from specbench.hardware.stored_profile import datasheet
from specbench.results.summary_schema import MethodSummary

SHAPE = ModelShape(
    matmul=10**9, head=10**8, embedding=0, embedding_width=1000, tied=True, small=0,
    attention=(AttentionLayers(layers=10, query_heads=8, kv_heads=2, key_size=64, value_size=64),), weight_bytes=2,
    cache_bytes=2,
)  # fmt: skip
HERE = Ceilings(bytes_per_s=1e12, flops_per_s=1e14)


def bound(rows: int, ceilings: Ceilings = HERE) -> float:
    return bound_s(step_cost(SHAPE, rows, 512), ceilings)


def points(seconds: dict[int, float]) -> list[StepPoint]:
    return [
        StepPoint(rows=rows, context=512, seconds=taken, low_s=taken, high_s=taken, steps=1)
        for rows, taken in seconds.items()
    ]


def test_a_step_at_its_bound_or_ahead_of_it() -> None:
    there = Ceilings(bytes_per_s=3e12, flops_per_s=9e14)
    made = Projection(SHAPE, HERE, points({rows: bound(rows) for rows in (1, 64, 512)}), there)
    for rows in (1, 64, 512):
        band = made.seconds(rows, 512)
        assert (band.value, band.low, band.high) == pytest.approx((bound(rows, there),) * 3)
    # Ceilings are medians, and a step can beat them: what it is ahead by must not eat up the bound there.
    there = Ceilings(bytes_per_s=1e14, flops_per_s=1e16)
    band = Projection(SHAPE, HERE, points({1: 0.5 * bound(1)}), there).seconds(1, 512)
    assert 0 < band.low <= band.value <= band.high


def test_the_band_reaches_from_shares_to_what_is_beyond_the_bound() -> None:
    there = Ceilings(bytes_per_s=4e12, flops_per_s=4e14)  # four times of both: every bound is a quarter
    beyond = 1e-3
    made = Projection(SHAPE, HERE, points({1: bound(1) + beyond}), there)
    band = made.seconds(1, 512)
    assert band.low == pytest.approx((bound(1) + beyond) / 4)
    assert band.high == pytest.approx(bound(1) / 4 + beyond)
    assert band.value == pytest.approx(math.sqrt(band.low * band.high))
    there = Ceilings(bytes_per_s=HERE.bytes_per_s / 2, flops_per_s=HERE.flops_per_s / 2)
    made = Projection(SHAPE, HERE, points({1: bound(1) + 1e-3}), there)
    band = made.seconds(1, 512)
    assert band.low == pytest.approx(2 * bound(1) + 1e-3)
    assert band.high == pytest.approx(2 * (bound(1) + 1e-3))


def row(method: str, tokens_per_forward: float | None, rows_per_step: float | None) -> MethodSummary:
    return MethodSummary(
        method=method, prompts=1, requests=1, tokens=2, target_forwards=1, tokens_per_forward=tokens_per_forward,
        tokens_per_forward_with_prefill=None, decode_tok_s=None, rows_per_step=rows_per_step,
    )  # fmt: skip


def test_a_run_there() -> None:
    there = Ceilings(bytes_per_s=2e12, flops_per_s=2e14)
    made = Projection(SHAPE, HERE, points({1: 2 * bound(1), 16: 3 * bound(1)}), there)
    rows = [row("ar", 1.0, 1.0), row("jf", 2.5, 16.2), row("idle", None, None)]
    found = project(made, rows, context=512, slots=1)
    assert set(found) == {"ar", "jf"}
    assert set(found["ar"]) == {"decode_tok_s"}
    step, plain = made.seconds(16, 512), made.seconds(1, 512)
    speed, ratio = found["jf"]["decode_tok_s"], found["jf"]["speedup"]
    assert (speed.low, speed.value, speed.high) == pytest.approx((2.5 / step.high, 2.5 / step.value, 2.5 / step.low))
    assert speed.low < speed.value < speed.high
    ends = sorted((2.5 * plain.low / step.low, 2.5 * plain.high / step.high))
    assert [ratio.low, ratio.high] == pytest.approx(ends)
    assert ratio.low <= ratio.value <= ratio.high


def test_throughput_counts_all_slots_and_ceilings_are_a_datasheets() -> None:
    made = Projection(SHAPE, HERE, points({1: bound(1), 4: bound(4)}), HERE)
    (found,) = project(made, [row("ar", 1.0, 1.0)], 512, slots=4).values()
    assert found["decode_tok_s"].value == pytest.approx(4 / made.seconds(1, 512, 4).value)
    h100 = gpus.find("h100")
    sheet = known(datasheet(h100, "bfloat16"))
    assert (sheet.bytes_per_s, sheet.flops_per_s) == (3.35e12, 989.4e12)
    assert datasheet(h100, "int4") is None
