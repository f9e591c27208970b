"""Circles at an answer's end."""

from __future__ import annotations

from itertools import product

from specbench.training.answers import before_run, cut_circle, without_circles
from specbench.training.recipe import Text


def test_rounds_beyond_those_kept_are_cut() -> None:
    start = [90, 91, 92]
    for circle, keep in product(([7], [1, 2], [5, 6, 7, 5], list(range(40))), (1, 2, 3)):
        found = list(cut_circle([*start, *circle * (keep + 3)], keep))
        assert found[: len(start) + keep * len(circle)] == [*start, *circle * keep]
        assert len(found) < len(start) + (keep + 1) * len(circle)
    # A round that was broken off is cut with the others.
    assert list(cut_circle([9, *[1, 2, 3] * 5, 1, 2], 2)) == [9, *[1, 2, 3] * 2]


def test_others_stay_as_they_are() -> None:
    for answer in ([], [1], [1, 1, 1], [1, 2, 3, 4] * 3, [*[1, 2] * 9, 3], list(range(300))):
        assert cut_circle(answer, 3) == answer
    assert len(cut_circle(list(range(10)) * 6, 2, longest=9)) == 60  # a circle longer than looked for


def test_zero_keeps_everything() -> None:
    texts = [Text("a", [1], [4] * 50)]
    assert without_circles(texts, 0) == texts
    assert [list(text.answer) for text in without_circles(texts, 3)] == [[4] * 3]


def test_an_answer_is_sound_up_to_a_run() -> None:
    for answer, sound in (([], 0), ([1], 1), ([1, 1, 1], 2), ([1, 2, 2, 3, 3, 3, 3], 5), ([1, 1, 2, 1, 1], 5)):
        assert before_run(answer, 3) == sound
