"""The first tier of tests leaves the longest functions to the second, and the list of those names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiers

HERE = Path(__file__).parent
PRINTED = """
3.00s call     tests/a/test_x.py::test_one[1]
2.00s setup    tests/a/test_x.py::test_one[2]
4.00s call     tests/a/test_y.py::test_two
1.50s teardown tests/test_z.py::test_three[a[b]]
(4 durations < 0.005s hidden.)
"""


@pytest.mark.parametrize(
    ("seconds", "left_out"),
    [(20, []), (10, ["a/test_x.py::test_one"]), (5, ["a/test_x.py::test_one", "a/test_y.py::test_two"])],
)
def test_the_longest_functions_are_left_out(seconds: float, left_out: list[str]) -> None:
    assert tiers.longest(PRINTED.splitlines(), seconds) == left_out


def test_what_is_left_out_is_there() -> None:
    for name in tiers.later():
        file, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (HERE / file).read_text(), re.MULTILINE), name


def test_it_is_marked(request: pytest.FixtureRequest) -> None:
    assert tiers.function(request.node.nodeid) not in tiers.later()
    assert not [*request.node.iter_markers("later")]
    for item in request.session.items:
        assert bool([*item.iter_markers("later")]) == (tiers.function(item.nodeid) in tiers.later())
