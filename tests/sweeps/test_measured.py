"""Speedups as a search sees them, against ones worked out by hand."""

from __future__ import annotations

import random

import pytest
from sweep_workers import record

from specbench.sweeps.search import Measured

A, B, C = "toy n=2", "toy n=4", "toy n=8"


def measured(*records: object, shared: bool = False) -> Measured:
    made = Measured(shared)
    for each in records:
        made.add(each)  # type: ignore[arg-type]
    return made


def test_a_speedup_is_a_ratio_of_pooled_seconds_per_token() -> None:
    found = measured(
        record("ar", "p0", tokens=11, decode_s=10.0),
        record("ar", "p1", tokens=31, decode_s=20.0),
        record(A, "p0", tokens=11, decode_s=4.0),
        record(A, "p1", tokens=21, decode_s=6.0),
    ).speedup(A)
    assert found is not None
    # AR: 30 s for 10 + 30 tokens; the cell: 10 s for 10 + 20.
    assert found.value == pytest.approx((30 / 40) / (10 / 30))
    assert found.interval is None  # two prompts are too few for one
    assert found.clusters == 2


def test_only_prompts_that_both_have_count_and_of_these_only_the_wanted() -> None:
    made = measured(
        *(record("ar", f"p{at}", decode_s=at + 1.0) for at in range(3)),
        record(A, "p0", decode_s=0.5),
        record(A, "p2", decode_s=0.5),
        record(A, "p9", decode_s=99.0),
    )
    every, one = made.speedup(A), made.speedup(A, prompts=["p2", "p1"])
    assert every is not None
    assert every.value == pytest.approx((1 + 3) / 1)
    assert one is not None
    assert one.value == pytest.approx(3 / 0.5)
    assert made.speedup(A, prompts=["p1"]) is None
    assert made.speedup(B) is None


def test_turns_of_a_prompt_are_added_up() -> None:
    made = measured(
        record("ar", "p0", tokens=11, decode_s=10.0),
        record("ar", "p0", turn=2, tokens=6, decode_s=5.0),
        record(A, "p0", tokens=11, decode_s=3.0),
        record(A, "p0", turn=2, tokens=6, decode_s=2.0),
    )
    found = made.speedup(A)
    assert found is not None
    assert (found.value, found.clusters) == (pytest.approx(3.0), 1)


def test_a_cell_is_paired_with_the_plain_decoding_of_its_own_pass() -> None:
    # The machine is three times slower in the second pass; its cell is no slower for that.
    made = measured(
        record("ar", "p0", decode_s=4.0),
        record(A, "p0", decode_s=2.0),
        record("ar", "p0", repeat=1, decode_s=12.0),
        record(B, "p0", repeat=1, decode_s=6.0),
    )
    first, second = made.speedup(A), made.speedup(B)
    assert first is not None
    assert second is not None
    assert first.value == second.value == pytest.approx(2.0)
    assert made.ranked([A, B]) == [A, B]  # equal ones stay in their order
    assert made.ranked([B, A]) == [B, A]


def test_two_cells_are_compared_prompt_by_prompt_whatever_their_passes() -> None:
    made = measured(
        *(record(A, f"p{at}", decode_s=at + 1.0) for at in range(3)),
        *(record(B, f"p{at}", repeat=1, decode_s=1.0) for at in range(1, 4)),
    )
    found = made.speedup(B, over=A)
    assert found is not None
    assert found.value == pytest.approx((2 + 3) / 2)


def test_shared_engines_count_a_requests_share_of_the_time() -> None:
    records = [
        record("ar", "p0", decode_s=8.0, decode_share_s=2.0),
        record(A, "p0", decode_s=4.0, decode_share_s=0.5),
    ]
    alone, shared = measured(*records).speedup(A), measured(*records, shared=True).speedup(A)
    assert alone is not None
    assert shared is not None
    assert (alone.value, shared.value) == (pytest.approx(2.0), pytest.approx(4.0))


def test_the_ranking_is_by_speedup_and_what_has_none_comes_last() -> None:
    made = measured(
        *(record("ar", f"p{at}", decode_s=4.0) for at in range(2)),
        *(record(A, f"p{at}", decode_s=2.0) for at in range(2)),
        record(B, "p0", decode_s=1.0),
        record(B, "p1", decode_s=9.0),
        *(record(C, f"p{at}", tokens=1, forwards=0, decode_s=0.0) for at in range(2)),  # nan
    )
    nothing = "toy n=16"
    assert made.ranked([nothing, C, B, A]) == [A, B, nothing, C]
    assert made.ranked([nothing, C, B, A], ["p0"]) == [B, A, nothing, C]


def test_the_ranking_agrees_with_the_speedups() -> None:
    rng = random.Random(5)
    cells = [f"toy n={at}" for at in range(2, 14)]
    made = measured(
        *(
            record(label, f"p{at}", tokens=rng.randint(2, 40), decode_s=rng.uniform(1, 2))
            for label in ["ar", *cells]
            for at in range(9)
        )
    )
    values = {label: ratio.value for label in cells if (ratio := made.speedup(label))}
    assert made.ranked(cells) == sorted(cells, key=lambda label: -values[label])


def test_cells_are_within_noise_until_their_paired_interval_leaves_out_1() -> None:
    rng = random.Random(1)
    prompts = [f"p{at}" for at in range(30)]
    hard = {prompt: rng.lognormvariate(0, 1) for prompt in prompts}
    costs = {A: 1.0, B: 1.01, C: 1.2}  # against noise of 5% a request
    made = measured(
        *(
            record(cell, p, decode_s=cost * hard[p] * rng.uniform(0.95, 1.05))
            for cell, cost in costs.items()
            for p in hard
        )
    )
    assert made.within_noise(A, [A, B, C]) == [A, B]
    # The prompts differ by far more than the cells: only the pairing tells C apart.
    assert made.within_noise(C, [A, B, C]) == [C]
    assert made.within_noise(A, [A, B, C], prompts[:5]) == [A, B, C]  # too few for any interval
