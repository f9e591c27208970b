"""Grades counted over prompts, by hand."""

from __future__ import annotations

import pytest
from support.asserting import known

from specbench.analysis.losslessness import grade_rates, merge, prompt_of, worst_grade
from specbench.analysis.stats import proportion_interval


def test_the_worst_of_some_and_whose_it_is() -> None:
    assert worst_grade([]) == "exact"
    assert worst_grade(["numeric-tie", "exact"]) == "numeric-tie"
    assert worst_grade(["numeric-tie", "lossy", "exact"]) == "lossy"
    assert prompt_of("HumanEval/0|0") == ("HumanEval/0", "")
    assert prompt_of("81|0|2") == ("81", "2")


def test_a_prompt_counts_once_by_its_worst_answer() -> None:
    # Four prompts of two answers each; both answers of b part, one is a tie.
    found = grade_rates(
        ["a", "a", "b", "b", "c", "c", "d", "d"], [("b", "numeric-tie"), ("b", "lossy"), ("c", "numeric-tie")]
    )
    assert {grade: (share["count"], share["of"]) for grade, share in found.items()} == {
        "exact": (2, 4), "numeric-tie": (1, 4), "lossy": (1, 4),
    }  # fmt: skip
    wilson = known(proportion_interval(1, 4))
    assert (found["lossy"]["low"], found["lossy"]["high"]) == (wilson.low, wilson.high)
    assert grade_rates(["a"], [("z", "lossy")])["lossy"]["count"] == 0
    assert grade_rates([], []) == {
        grade: {"count": 0, "of": 0, "low": None, "high": None} for grade in ("exact", "numeric-tie", "lossy")
    }


@pytest.mark.parametrize("order", [1, -1])
def test_tallies_add_up_and_the_largest_noise_stays(order: int) -> None:
    calm = {
        "verdict": "numeric-tie", "exact": 3, "numeric_tie": 1, "lossy": 0, "divergences": ["x"],
        "noise_floor": 0.1, "noise": {"floor": 0.1},
    }  # fmt: skip
    loud = {**calm, "verdict": "exact", "exact": 4, "numeric_tie": 0, "divergences": [], "noise": {"floor": 0.4}}
    none = {**loud, "noise": None}
    found = merge([calm, loud, none][::order])
    assert found == {
        "verdict": "numeric-tie", "exact": 11, "numeric_tie": 1, "lossy": 0, "divergences": ["x"],
        "noise_floor": 0.4, "noise": {"floor": 0.4},
    }  # fmt: skip
    assert merge([none])["noise_floor"] is None
