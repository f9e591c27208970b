"""Many rows at once: intervals that hold together, and which rows may be the best."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.interval_coverage import Table, best_of_many
from specbench.analysis.stats import Interval, Paired, many, paired_ratio, verdict


def rows(speedups: list[float], prompts: int, seed: int = 0) -> dict[str, Paired]:
    return Table(speedups).experiment(np.random.default_rng(seed), prompts)


def test_one_row_has_its_own_interval() -> None:
    (label, row), *_ = rows([1.3], 20).items()
    alone = paired_ratio(row.numerator, row.denominator, seed=3, clusters=row.clusters)
    found = many({label: row}, seed=3)
    assert alone.interval is not None
    assert found.intervals[label].low == pytest.approx(alone.interval.low)
    assert found.intervals[label].high == pytest.approx(alone.interval.high)
    assert (found.best, found.as_good, found.rows) == (label, (label,), 1)


def test_further_rows_widen_an_interval_and_a_wild_one_widens_hardly_but_its_own() -> None:
    made = rows([1.3, 1.1, 1.0, 0.9], 20)
    alone = {label: many({label: row}, seed=0).intervals[label] for label, row in made.items()}
    together = many(made, seed=0).intervals
    for label, interval in together.items():
        assert interval.low < alone[label].low < alone[label].high < interval.high
    first = next(iter(made))
    seconds, _ = made[first].denominator
    wild = replace_denominator(made[first], [second * 40 if at == 3 else second for at, second in enumerate(seconds)])
    with_wild = many({**made, "wild": wild}, seed=0).intervals
    assert math.log(with_wild["wild"].high / with_wild["wild"].low) > 3 * math.log(
        together[first].high / together[first].low
    )
    for label, interval in together.items():
        assert math.log(with_wild[label].high / with_wild[label].low) < 1.15 * math.log(interval.high / interval.low)


def replace_denominator(row: Paired, seconds: list[float]) -> Paired:
    return replace(row, denominator=(seconds, row.denominator[1]))


def test_equal_rows_are_all_as_good_and_clearly_slower_ones_are_not() -> None:
    made = rows([1.5, 1.2, 1.0], 40)
    twice = many({**made, "again": made["row 0"]}, seed=0)
    assert twice.conclusive
    assert set(twice.as_good) == {"row 0", "again"}
    assert many(rows([1.0] * 4, 6, seed=5), seed=0).conclusive


def test_too_few_prompts_tell_nothing_apart() -> None:
    found = many(rows([3.0, 1.0], 5), seed=0)
    assert (found.best, set(found.as_good), found.conclusive, dict(found.intervals)) == (
        "row 0", {"row 0", "row 1"}, False, {},
    )  # fmt: skip
    assert many({}, seed=0).best is None


def test_more_rows_than_are_compared_with_each_other_are_compared_with_the_best() -> None:
    speedups = [2.0, 1.98, *np.linspace(1.9, 0.5, 48).tolist()]
    found = many(rows(speedups, 30), seed=0, draws=500)
    assert found.best in ("row 0", "row 1", "row 2", "row 3")
    assert {"row 0", "row 1"} <= set(found.as_good)
    assert not {f"row {at}" for at in range(20, 50)} & set(found.as_good)


def test_rows_on_other_prompts_and_rows_without_tokens_are_taken_as_they_are() -> None:
    made = rows([1.5, 1.0], 20)
    row = made["row 1"]
    arms = [(seconds[:8], tokens[:8]) for seconds, tokens in (row.numerator, row.denominator)]
    part = Paired(arms[0], arms[1], row.clusters[:8])
    nothing = Paired(([1.0], [0.0]), ([1.0], [0.0]), [0])
    found = many({"whole": made["row 0"], "part": part, "nothing": nothing}, seed=0)
    assert found.intervals.keys() == {"whole", "part"}
    assert (found.best, found.rows) == ("whole", 2)
    assert "nothing" not in found.as_good


def test_equal_rows_on_fewer_prompts_are_judged_together_too() -> None:
    """As cells that stop early: a resample of all prompts may have none of theirs."""
    generator, wrong = np.random.default_rng(11), 0
    for experiment in range(25):
        made = Table([1.0] * 12).experiment(generator, 30)
        some = {}
        for label, row in made.items():
            kept = 30 if label == "row 0" else 8
            arms = [(seconds[:kept], tokens[:kept]) for seconds, tokens in (row.numerator, row.denominator)]
            some[label] = Paired(arms[0], arms[1], row.clusters[:kept])
        found = many(some, seed=experiment, draws=400)
        assert found.intervals.keys() == some.keys()
        wrong += any(each.low > 1 or each.high < 1 for each in found.intervals.values())
    assert wrong <= 5


def test_rows_that_cannot_be_the_best_count_for_the_intervals_alone() -> None:
    made = rows([1.5, 1.2, 1.0], 30)
    found = many(made, seed=0, candidates=["row 1", "row 2"])
    assert found.best == "row 1"
    assert "row 0" not in found.as_good
    assert found.intervals == many(made, seed=0).intervals


def test_false_winners_are_rare_and_the_best_is_kept() -> None:
    equal = best_of_many(Table([1.0] * 6), 20, experiments=120, draws=600)
    assert equal.faster <= 0.07
    assert equal.covered >= 0.92
    ahead = best_of_many(Table([1.02, 1.0, 1.0]), 20, experiments=120, draws=400)
    assert ahead.kept >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [20])
def test_of_14_equal_rows_one_is_called_faster_in_at_most_5_percent_of_2000_experiments(prompts: int) -> None:
    results = best_of_many(Table([1.0] * 14), prompts, experiments=2_000)
    assert results.faster <= 0.05
    assert results.covered >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [20])
def test_the_true_best_of_five_is_among_those_as_good_in_95_percent_of_2000_experiments(prompts: int) -> None:
    results = best_of_many(Table([1.02, 1.0, 1.0, 1.0, 1.0]), prompts, experiments=2_000)
    assert results.kept >= 0.95
    assert results.covered >= 0.95


ends = st.tuples(st.floats(0.1, 3), st.floats(0.0, 3)).map(lambda two: Interval(two[0], two[0] + two[1], 0.95))


@given(own=st.none() | ends, among=st.none() | ends)
def test_a_verdict_is_never_more_than_either_interval_says(own: Interval | None, among: Interval | None) -> None:
    text, each = verdict(own, among), {verdict(interval) for interval in (own, among) if interval}
    if own is None:
        assert text == "too few prompts"
    elif each in ({"faster"}, {"slower"}):
        assert {text} == each
    else:
        assert text == "no difference shown"
