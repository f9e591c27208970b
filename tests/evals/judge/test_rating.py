from __future__ import annotations

import pytest

from specbench.evals.judge.judge import rating


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Clear and right. Rating: [[8]]", 8),
        ("[[7.5]]", 7.5),
        ("[[7.]]", 7),
        ("[[3]] and later [[9]]", 3),
        ("Rating: [6]", 6),
        ("as in [2] it says, so [[9]]", 9),  # the asked-for form wins wherever it stands
        ("[[10]]", 10),
        ("[[1]]", 1),
    ],
)
def test_a_rating_is_found(text: str, value: float) -> None:
    assert rating(text) == value


@pytest.mark.parametrize(
    "text", ["", "Rating: 8", "[[eight]]", "[[8/10]]", "[[-3]]", "[[ 8 ]]", "[[0]]", "[[11]]", "[[85]]", "see [12]"]
)
def test_anything_else_is_no_rating_and_never_nought(text: str) -> None:
    assert rating(text) is None
