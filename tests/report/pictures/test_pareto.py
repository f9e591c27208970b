"""Which cells no other beats in speed and right answers, and what of it is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from support.asserting import known
from support.runs import NOTHING, cells
from support.wording import wording

from specbench.analysis.stats import proportion_interval
from specbench.report.charts.pareto import FRONT, SMALL, front, pareto

CELLS: list[dict[str, Any]] = [
    {"method": "ar", "decode_tok_s": 40.0, "accuracy": 0.8},
    {"method": "jf", "label": "jf n=8", "decode_tok_s": 60.0, "accuracy": 0.8, "decode_tok_s_half": 5.0},
    {"method": "jf", "label": "jf n=16", "decode_tok_s": 90.0, "accuracy": 0.7},
    {"method": "jf", "label": "jf n=32", "decode_tok_s": 80.0, "accuracy": 0.6},
    {"method": "msn", "decode_tok_s": 120.0, "accuracy": 0.5},
]


def drawn(rows: list[dict[str, Any]]) -> Axes:
    (axes,) = pareto(cells(rows)).axes
    return axes


def points(axes: Axes, label: str) -> list[tuple[float, float]]:
    found = next((c for c in axes.collections if c.get_label() == label), None)
    return [] if found is None else [(float(x), float(y)) for x, y in np.asarray(found.get_offsets())]


@pytest.mark.parametrize(
    ("speed", "accuracy", "ahead"),
    [
        ([1, 2, 3], [3, 2, 1], [True, True, True]),
        ([1, 2, 3], [1, 2, 3], [False, False, True]),
        ([1, 2, 2], [3, 1, 2], [True, False, True]),
        ([2, 2], [1, 1], [True, True]),  # equal points: neither is better
        ([1, 2], [5, 5], [False, True]),
        ([], [], []),
    ],
)
def test_the_front_is_what_no_other_beats(speed: list[float], accuracy: list[float], ahead: list[bool]) -> None:
    assert front(np.array(speed, dtype=float), np.array(accuracy, dtype=float)).tolist() == ahead


def test_points_stand_at_their_figures_with_names_of_some() -> None:
    axes = drawn(CELLS)
    assert points(axes, "ar") == [(40.0, 0.8)]
    assert points(axes, "jf") == [(60.0, 0.8), (90.0, 0.7), (80.0, 0.6)]
    line = next(line for line in axes.lines if line.get_label() == FRONT)
    steps = [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
    # Up to 60 tok/s it is 0.8; from there on no more than 0.7, and from 90 on 0.5.
    assert steps == [(60, 0.8), (60, 0.7), (90, 0.7), (90, 0.5), (120, 0.5)]
    axes = drawn(CELLS)
    assert sorted(text.get_text() for text in axes.texts) == ["ar", "jf n=16", "jf n=8", "msn"]


def test_bars_are_the_interval_of_speed_and_wilsons_of_the_answers() -> None:
    axes = drawn(CELLS[:2])
    drawings = [c for c in axes.collections if isinstance(c, LineCollection)]
    found = [np.asarray(segment) for c in drawings for segment in c.get_segments() if len(segment)]
    across = [s for s in found if s[0, 1] == s[1, 1]]
    upright = [s for s in found if s[0, 0] == s[1, 0] == 60.0]
    assert [s[:, 0].tolist() for s in across] == [[pytest.approx(55.0), pytest.approx(65.0)]]
    wilson = known(proportion_interval(40, 50))
    assert [s[:, 1].tolist() for s in upright] == [[pytest.approx(wilson.low), pytest.approx(wilson.high)]]


def test_small_configurations_win_nothing_and_missing_accuracy_is_counted() -> None:
    figure = pareto(cells([*CELLS, {"decode_tok_s": 999.0}, {"decode_tok_s": NOTHING, "accuracy": 0.9}]))
    assert all(x < 900 for x, _ in points(figure.axes[0], "jf"))
    assert wording(" ".join(figure.get_supxlabel().split()))
    assert "not shown" not in pareto(cells(CELLS)).get_supxlabel()
    axes = drawn([*CELLS, {"decode_tok_s": 130.0, "accuracy": 1.0, "stopped": "halved", "prompts": 4}])
    assert points(axes, f"jf: {SMALL}") == [(130.0, 1.0)]
    line = next(line for line in axes.lines if line.get_label() == FRONT)
    assert np.asarray(line.get_xdata()).max() == 120
