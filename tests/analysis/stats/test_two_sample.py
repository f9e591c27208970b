"""Level and power of the two-sample test on a language whose distributions are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.interval_coverage import Language, called_different
from specbench.analysis.stats import TwoSample, two_sample


def drawn(seed: int, answers: int, temperature: float = 1.0) -> dict[str, list[list[int]]]:
    return Language(temperature).texts(np.random.default_rng(seed), answers)


def test_equal_samplers_are_called_different_at_the_stated_level() -> None:
    # 100 experiments at 5 %: 5 expected, 12 are three standard deviations more.
    assert called_different(Language(), 100, answers=30, permutations=199) <= 0.11


def test_a_planted_bias_is_found() -> None:
    # Colder by 0.6: a total variation of 16 % on average, next to what the test says that it finds with 60 answers.
    biased = Language(0.6)
    distance = biased.distance(Language())
    found = two_sample(drawn(1, 60, 0.6), drawn(2, 60), seed=0, level=0.05)
    assert found.verdict == "different"
    assert found.detectable is not None
    assert 0.7 * distance < found.detectable < 1.3 * distance
    assert called_different(biased, 20) >= 0.8


def test_one_biased_token_is_found_with_many_answers() -> None:
    fair = {"p": [[number % 4, 7] for number in range(400)]}
    loaded = {"p": [[min(number % 5, 3), 7] for number in range(400)]}  # 3 comes twice as often
    found = two_sample(loaded, fair, seed=0)
    assert (found.verdict, found.contexts, found.answers) == ("different", 5, 800)
    assert two_sample(fair, fair, seed=0).p_value == 1


def test_answers_that_share_no_prefix_say_nothing() -> None:
    apart = {"p": [[number, 1, 2] for number in range(30)]}
    others = {"p": [[100 + number, 1, 2] for number in range(30)]}
    found = two_sample(apart, others, seed=0)
    assert (found.verdict, found.detectable, found.p_value) == ("too few samples", None, 1)
    assert two_sample({"p": [[1]]}, {"q": [[2]]}, seed=0).verdict == "too few samples"


def test_constant_samplers_show_no_difference_with_enough_power() -> None:
    sure = {"p": [[1, 2]] * 20}
    found = two_sample(sure, sure, seed=0)
    assert (found.verdict, found.p_value, found.contexts) == ("no difference shown", 1, 2)
    assert found.detectable is not None
    odd = {"p": [[1, 2]] * 10 + [[1, 3]] * 10}
    assert two_sample(odd, sure, seed=0).verdict == "different"


def test_equal_input_and_seed_give_equal_results_whatever_else_one_side_has() -> None:
    ours, theirs = drawn(3, 30), drawn(4, 30)
    assert two_sample(ours, theirs, seed=5) == two_sample(ours, theirs, seed=5)
    assert two_sample(ours, theirs, seed=5).p_value != two_sample(ours, theirs, seed=6).p_value
    ours, theirs = drawn(3, 30), drawn(4, 30)
    assert two_sample({**ours, "more": [[1]]}, theirs, seed=5) == two_sample(ours, theirs, seed=5)


@pytest.mark.parametrize(
    ("p_value", "detectable", "text"),
    [(0.001, 0.1, "different"), (0.02, 0.1, "no difference shown"), (0.001, None, "too few samples")],
)
def test_words(p_value: float, detectable: float | None, text: str) -> None:
    assert TwoSample(p_value, 0.01, 5, detectable, 50).verdict == text
