"""Speedups as a search sees them, against ones worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.asserting import known
from support.runs import record

from specbench.analysis.stats import Ratio
from specbench.results.request_schema import RequestRecord
from specbench.sweeps.search import Measured

A, B, C = "toy n=2", "toy n=4", "toy n=8"


def measured(*records: RequestRecord, shared: bool = False) -> Measured:
    made = Measured(shared)
    for each in records:
        made.add(each)
    return made


def speedup(of: Measured, label: str, **more: Any) -> Ratio:
    found = known(of.speedup(label, **more))
    return found


def test_speedups_are_of_pooled_seconds_with_turns_added_up() -> None:
    made = measured(
        record("ar", "p0", tokens=11, decode_s=10.0), record("ar", "p1", tokens=31, decode_s=20.0),
        record(A, "p0", tokens=11, decode_s=4.0), record(A, "p1", tokens=21, decode_s=6.0),
    )  # fmt: skip
    found = speedup(made, A)
    # AR: 30 s for 10 + 30 tokens; the cell: 10 s for 10 + 20.
    assert found.value == pytest.approx((30 / 40) / (10 / 30))
    assert found.interval is None  # two prompts are too few for one
    assert found.clusters == 2
    turns = (("ar", 1, 11, 10.0), ("ar", 2, 6, 5.0), (A, 1, 11, 3.0), (A, 2, 6, 2.0))
    found = speedup(measured(*(record(m, "p0", turn=t, tokens=n, decode_s=s) for m, t, n, s in turns)), A)
    assert (found.value, found.clusters) == (pytest.approx(3.0), 1)


def test_only_prompts_that_both_have_count_and_of_these_only_the_wanted() -> None:
    plain = (record("ar", f"p{at}", decode_s=at + 1.0) for at in range(3))
    made = measured(*plain, *(record(A, f"p{at}", decode_s=s) for at, s in ((0, 0.5), (2, 0.5), (9, 99.0))))
    assert speedup(made, A).value == pytest.approx((1 + 3) / 1)
    assert speedup(made, A, prompts=["p2", "p1"]).value == pytest.approx(3 / 0.5)
    assert made.speedup(A, prompts=["p1"]) is None
    assert made.speedup(B) is None


def test_cells_are_paired_by_pass_and_by_prompt() -> None:
    # The machine is three times slower in the second pass; its cell is no slower for that.
    passes = (("ar", 0, 4.0), (A, 0, 2.0), ("ar", 1, 12.0), (B, 1, 6.0))
    made = measured(*(record(label, "p0", repeat=again, decode_s=s) for label, again, s in passes))
    assert speedup(made, A).value == speedup(made, B).value == pytest.approx(2.0)
    assert made.ranked([A, B]) == [A, B]  # equal ones stay in their order
    assert made.ranked([B, A]) == [B, A]


def test_shared_engines_count_a_requests_share_of_the_time() -> None:
    records = [record("ar", "p0", decode_s=8.0, decode_share_s=2.0), record(A, "p0", decode_s=4.0, decode_share_s=0.5)]
    for shared, value in ((False, 2.0), (True, 4.0)):
        assert speedup(measured(*records, shared=shared), A).value == pytest.approx(value)


def test_the_ranking_is_by_speedup_and_what_has_none_comes_last() -> None:
    made = measured(
        *(record("ar", f"p{at}", decode_s=4.0) for at in range(2)),
        *(record(A, f"p{at}", decode_s=2.0) for at in range(2)),
        *(record(B, f"p{at}", decode_s=seconds) for at, seconds in enumerate((1.0, 9.0))),
        *(record(C, f"p{at}", tokens=1, forwards=0, decode_s=0.0) for at in range(2)),  # nan
    )
    nothing = "toy n=16"
    assert made.ranked([nothing, C, B, A]) == [A, B, nothing, C]
    assert made.ranked([nothing, C, B, A], ["p0"]) == [B, A, nothing, C]
    rng, cells = random.Random(5), [f"toy n={at}" for at in range(2, 14)]
    drawn = [(label, f"p{at}", rng.randint(2, 40), rng.uniform(1, 2)) for label in ["ar", *cells] for at in range(9)]
    made = measured(*(record(label, prompt, tokens=n, decode_s=s) for label, prompt, n, s in drawn))
    assert made.ranked(cells) == sorted(cells, key=lambda label: -speedup(made, label).value)


def test_cells_are_as_good_as_the_best_until_comparisons_with_the_best_rule_them_out() -> None:
    rng = random.Random(1)
    prompts = [f"p{at:02d}" for at in range(30)]
    hard = {prompt: rng.lognormvariate(0, 1) for prompt in prompts}
    costs = {"ar": 2.0, A: 1.0, B: 1.003, C: 1.2}  # against noise of 5% a request
    made = measured(
        *(
            record(cell, p, decode_s=cost * hard[p] * rng.uniform(0.95, 1.05))
            for cell, cost in costs.items()
            for p in hard
        )
    )
    # The prompts differ by far more than the cells: only the pairing tells C apart.
    found = made.together([A, B, C])
    assert (found.best, found.as_good, found.conclusive) == (A, (A, B), True)
    assert made.together([C]).as_good == (C,)
    few = made.together([A, B, C], prompts[:5])  # too few for any interval
    assert (set(few.as_good), few.conclusive, dict(few.intervals)) == ({A, B, C}, False, {})


def test_prompts_that_were_stepped_together_are_one_block() -> None:
    rng = random.Random(3)
    records = [
        record(label, f"p{at:02d}", segment=2 * (at // 8) + side, decode_share_s=cost * rng.uniform(0.9, 1.1))
        for at in range(56)
        for side, (label, cost) in enumerate((("ar", 2.0), (A, 1.0)))
    ]
    found = speedup(measured(*records, shared=True), A)
    assert found.clusters == 7
    assert found.interval is not None
    few = speedup(measured(*records, shared=True), A, prompts=[f"p{at:02d}" for at in range(40)])
    assert (few.clusters, few.interval) == (5, None), "40 prompts, and five blocks of them were timed"
    assert speedup(measured(*records), A).clusters == 56
