"""Where speculation stops paying: hand-computed crossings, and that the picture shows these and no others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from support.runs import NOTHING, busy, cells
from support.wording import wording

from specbench.report.charts.crossing import BARE, OTHERS, PREDICTED, crossing, crossings


def panel(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def diamonds(axes: Axes) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for c in axes.collections for x, y in np.asarray(c.get_offsets())
            if len(c.get_paths()) and c.get_zorder() == 5]  # fmt: skip


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


@pytest.mark.parametrize(
    ("speedups", "where", "between", "stops"),
    [
        ({8: 1.5, 16: 0.5}, 2**3.5, (8, 16), True),  # half-way on log2, and not 12
        ({4: 1.2, 16: 0.9}, 2 ** (2 + 2 * 2 / 3), (4, 16), True),
        ({1: 0.8, 2: 1.6}, 2**0.25, (1, 2), False),
        ({2: 1.4, 4: 1.0, 8: 0.7}, 4.0, (2, 4), True),  # at 1 it does not pay
        ({2: 1.4, 4: NOTHING, 8: 0.6}, 4.0, (2, 8), True),  # 4 was not measured
        ({16: 0.5, 8: 1.5, 4: 2.0}, 2**3.5, (8, 16), True),  # rows in no order
    ],
)
def test_a_crossing_lies_on_the_line_between_two_measured_neighbours(
    speedups: dict[int, float | tuple[float, float, float]], where: float, between: tuple[int, int], stops: bool
) -> None:
    (found,) = crossings(busy("jf", speedups))
    assert found.concurrency == pytest.approx(where)
    assert (found.between, found.stops, found.method) == (between, stops, "jf")


@pytest.mark.parametrize("speedups", [{1: 3.0, 64: 1.01}, {1: 0.9, 64: 0.2}, {4: 2.0}, {1: 1.0, 2: 1.0}, {1: NOTHING}])
def test_nothing_is_said_beyond_what_was_measured(speedups: dict[int, float | tuple[float, float, float]]) -> None:
    assert crossings(busy("jf", speedups)) == []


def test_every_crossing_of_every_setting_is_found_but_of_the_baseline() -> None:
    frame = pd.concat(
        [busy("pld", {1: 0.5, 2: 1.5, 4: 0.5}), busy("jf", {1: 1.5, 2: 0.5}, n=8), busy("jf", {1: 1.5, 2: 1.2}, n=64)],
        ignore_index=True,
    )
    found = [(c.method, c.between, c.stops) for c in crossings(frame)]
    assert found == [("pld", (1, 2), False), ("pld", (2, 4), True), ("jf", (1, 2), True)]
    assert crossings(busy("ar", {1: 1.1, 2: 0.9})) == []


@pytest.mark.parametrize(
    ("there", "here", "sure"),
    [
        ((1.3, 1.5, 1.7), (0.4, 0.5, 0.6), True),
        ((0.9, 1.5, 1.7), (0.4, 0.5, 0.6), False),
        ((1.3, 1.5, 1.7), (0.4, 0.5, 1.1), False),
        (1.5, (0.4, 0.5, 0.6), False),  # no interval shows nothing
    ],
)
def test_a_crossing_is_sure_where_both_intervals_exclude_1(
    there: float | tuple[float, float, float], here: tuple[float, float, float], sure: bool
) -> None:
    (found,) = crossings(busy("jf", {8: there, 16: here}))
    assert found.sure is sure
    assert wording(str(found))


def test_the_picture_shows_lines_bands_and_crossings() -> None:
    frame = pd.concat(
        [
            busy("jf", {1: (1.8, 2.0, 2.2), 8: (1.4, 1.5, 1.6), 16: (0.4, 0.5, 0.6)}),
            busy("pld", {1: 1.5, 16: 1.2}),
            busy("jf", {1: 1.9, 16: 0.4}, n=64),  # slower than the other jf at both
        ],
        ignore_index=True,
    )
    axes = panel(crossing(frame))
    lines = {line.get_label(): points(line) for line in axes.lines}
    assert lines["jf"] == [(1, 2.0), (8, 1.5), (16, 0.5)]
    assert lines["pld"] == [(1, 1.5), (16, 1.2)]
    assert lines[OTHERS] == [(1, 1.9), (16, 0.4)]
    assert {y for _, y in lines["AR"]} == {1.0}
    assert diamonds(axes) == [(pytest.approx(2**3.5), 1.0)]
    (label,) = axes.texts
    assert label.get_text() == "between 8 and 16"
    assert label.get_position()[0] == pytest.approx(0.7 * 11)  # up and right: AR's line passes right of the point
    (band,) = (c for c in axes.collections if isinstance(c, PolyCollection))
    corners = {(float(x), float(y)) for x, y in np.asarray(band.get_paths()[0].vertices)}
    assert {(1, 1.8), (1, 2.2), (8, 1.4), (8, 1.6), (16, 0.4), (16, 0.6)} <= corners
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "8", "16"]


def test_predictions_are_dashed_and_over_the_prediction_of_ar() -> None:
    mine = busy("jf", {1: 2.0, 4: 1.5}).assign(predicted_decode_tok_s=[90.0, 200.0])
    ar = cells([{"method": "ar", "concurrency": c, "predicted_decode_tok_s": p} for c, p in ((4, 160.0), (1, 40.0))])
    axes = panel(crossing(pd.concat([mine, ar], ignore_index=True)))
    (drawn,) = (line for line in axes.lines if line.get_linestyle() == "--" and len(points(line)))
    assert points(drawn) == [(1, 2.25), (4, 1.25)]
    assert PREDICTED in axes.get_legend_handles_labels()[1]
    without = panel(crossing(mine))  # no prediction of AR, so no ratio
    assert [line for line in without.lines if line.get_linestyle() == "--"] == []


def test_points_without_an_interval_are_hollow_and_a_disturbed_sweep_says_so() -> None:
    frame = pd.concat(
        [busy("suffix", {1: (1.0, 1.1, 1.2), 8: 0.87}), busy("pld", {1: 1.3, 8: (0.6, 0.7, 0.8)})], ignore_index=True
    )
    axes = panel(crossing(frame))
    hollow = {
        (float(x), float(y))
        for drawn in axes.collections
        if drawn.get_zorder() == 4.5
        for x, y in np.asarray(drawn.get_offsets())
    }
    assert hollow == {(8, 0.87), (1, 1.3)}
    assert axes.get_legend_handles_labels()[1].count(BARE) == 1
    assert [found.bare for found in crossings(frame)] == [True, True]
    why = "other processes took 31% of the cores"
    assert why in " ".join(crossing(frame.assign(disturbed=why)).get_supxlabel().split())
