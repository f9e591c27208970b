"""What a contour shows: measured cells where they are, colour between them only, and the best with its equals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from support.runs import NOTHING, cells, measured_grid, plane
from support.wording import wording

from specbench.report.charts.contours import (
    ALIKE,
    BEST,
    BEST_METHOD,
    MEASURED,
    MISSING,
    PLAIN,
    axis_scale,
    contour,
    interpolate,
)


def panels(figure: Figure) -> list[Axes]:
    """The panels without colour bars, by rows."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def speed(figure: Figure) -> Axes:
    return panels(figure)[1]


def marks(panel: Axes, label: str) -> set[tuple[float, float]]:
    """Where a panel has marks of that kind, in its data."""
    found: set[tuple[float, float]] = set()
    for drawn in panel.collections:
        if drawn.get_label() == label:
            found |= {(float(x), float(y)) for x, y in np.asarray(drawn.get_offsets())}
    return found


def band(panel: Axes, x: float, y: float) -> tuple[float, float] | None:
    """Limits of the colour at a place; None where nothing is coloured."""
    filled = next((c for c in panel.collections if isinstance(c, QuadContourSet) and c.filled), None)
    if filled is None:
        return None
    inside = [i for i, path in enumerate(filled.get_paths()) if path.contains_point((x, y))]
    assert len(inside) <= 1
    levels = np.asarray(filled.levels)
    return (float(levels[inside[0]]), float(levels[inside[0] + 1])) if inside else None


def note(figure: Figure) -> str:
    """What stands below a figure, without its line breaks."""
    return " ".join(figure.get_supxlabel().split())


def set_at(frame: pd.DataFrame, n: float, pool: float, **values: Any) -> pd.DataFrame:
    here = frame["n"].eq(n) & frame["pool"].eq(pool)
    assert here.sum() == 1
    return frame.assign(**{k: frame[k].where(~here, v) for k, v in values.items()})


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([8, 16, 32, 64, 128, 256], "log"), ([1, 2, 4, 8, 12], "log"), (np.arange(0.5, 1.0, 0.05), "linear"),
        ([1, 2, 3, 4], "linear"), ([0, 1, 2, 4, 8], "linear"), ([-8, 8, 64], "linear"), ([8, 64], "log"),
        ([0.5, 0.6, 0.9], "linear"), ([64], "linear"),
    ],
)  # fmt: skip
def test_an_option_stands_on_the_scale_that_spreads_its_values(values: npt.ArrayLike, scale: str) -> None:
    assert axis_scale(values) == scale


def test_interpolation_repeats_a_plane_and_folds_no_diagonal() -> None:
    ns, rs = [8, 32, 64, 256], [0.5, 0.6, 0.9]  # log2, and linear
    corners = [[3 + 5 * np.log2(n) - 2 * r for n in ns] for r in rs]
    x, y, values = interpolate(ns, rs, corners, steps=5)
    assert values.shape == (len(y), len(x)) == (11, 16)
    assert x[[0, 5, 10, 15]] == pytest.approx(ns)
    assert y[[0, 5, 10]] == pytest.approx(rs)
    assert values == pytest.approx(3 + 5 * np.log2(x) - 2 * y[:, None])
    _, _, values = interpolate([1, 2], [1, 2], [[0, 0], [0, 8]], steps=2)
    assert values[1, 1] == pytest.approx(2)  # the mean of the corners; a diagonal would give 0 or 4


@pytest.mark.parametrize(("lacking", "whole"), [(1, slice(8, None)), (2, slice(None, 5))])
def test_a_rectangle_without_all_its_corners_stays_empty(lacking: int, whole: slice) -> None:
    corners = np.arange(12.0).reshape(3, 4)
    corners[1, lacking] = np.nan
    _, _, values = interpolate([1, 2, 4, 8], [1, 2, 4], corners, steps=4)
    known = np.isfinite(values)
    assert known[:, whole].all()
    assert known.sum() == known[:, whole].size  # the four rectangles around it are empty


def test_nothing_is_coloured_in_a_hole_or_outside_the_cells() -> None:
    panel = speed(contour(measured_grid(without={(16, 2)}), "n", "pool"))
    holes = [(12, 1.5), (12, 3), (23, 1.5), (23, 3), (31.5, 3.9), (8.1, 1.05)]
    beyond = [(7.8, 2), (66, 2), (40, 0.97), (40, 4.1)]
    assert [band(panel, *place) for place in holes + beyond] == [None] * 10
    assert band(panel, 40, 1.05) is not None
    assert band(panel, 40, 3.9) is not None
    panel = speed(contour(measured_grid((8, 16, 32, 64), (1, 2, 4, 8), without={(16, 2)}), "n", "pool"))
    assert band(panel, 2**4.99, 2**1.99) is None
    assert band(panel, 2**5.01, 2**1.99) is not None
    assert band(panel, 2**4.99, 2**2.01) is not None


def test_cells_are_drawn_where_they_are_and_in_the_colour_of_their_value() -> None:
    frame = measured_grid(without={(16, 2)})
    panel = speed(contour(set_at(frame, 64, 4, decode_tok_s=NOTHING), "n", "pool"))
    assert marks(panel, MEASURED) == {(n, p) for n in (8, 16, 32, 64) for p in (1, 2, 4)} - {(16, 2), (64, 4)}
    assert marks(panel, MISSING) == {(16, 2), (64, 4)}
    drawn = next(c for c in panel.collections if c.get_label() == MEASURED)
    expected = [plane(n, pool) for n, pool in np.asarray(drawn.get_offsets())]
    assert np.asarray(drawn.get_array()) == pytest.approx(expected)
    whole = measured_grid()
    panel = speed(contour(whole[whole["n"] != 16], "n", "pool", grid=whole))
    assert marks(panel, MISSING) == {(16, 1), (16, 2), (16, 4)}
    assert band(panel, 11, 2) is None
    panel = panels(contour(measured_grid(pools=(0.5, 0.6, 0.7)), "n", "pool"))[0]
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "linear")
    assert [text.get_text() for text in panel.get_xticklabels()] == ["8", "16", "32", "64"]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["0.5", "0.6", "0.7"]


def test_the_best_has_a_star_and_needs_no_interval() -> None:
    frame = set_at(measured_grid(decode_tok_s_half=3.0), 64, 4, best=True, within_noise=True)
    frame = set_at(set_at(frame, 64, 2, within_noise=True), 32, 4, within_noise=True)
    figure = contour(frame, "n", "pool")
    for panel in panels(figure):
        assert marks(panel, BEST) == {(64, 4)}
        assert marks(panel, ALIKE) == {(64, 2), (32, 4)}
    assert [text.get_text() for text in speed(figure).texts] == ["88.0 tok/s\n[85.0, 91.0]"]
    assert [text.get_text() for text in panels(figure)[0].texts] == ["8.80 TPF"]
    assert [t.get_text() for t in speed(contour(set_at(measured_grid(), 8, 1, best=True), "n", "pool")).texts] == [
        "50.0 tok/s"
    ]
    elsewhere = "The best configuration of this concurrency is not shown here"
    assert elsewhere in note(contour(measured_grid(), "n", "pool"))
    assert elsewhere not in note(contour(set_at(measured_grid(), 8, 1, best=True), "n", "pool"))


@pytest.mark.parametrize(("ns", "pools", "over"), [((8, 16, 64), (4,), "n"), ((32,), (1, 2, 12), "pool")])
def test_one_row_or_column_of_cells_is_a_line_with_error_bars(
    ns: tuple[int, ...], pools: tuple[int, ...], over: str
) -> None:
    frame = set_at(measured_grid(ns, pools, decode_tok_s_half=2.0), ns[-1], pools[-1], best=True)
    panel = speed(contour(frame, "n", "pool"))
    assert panel.get_xlabel() == over
    assert panel.get_xscale() == "log"
    assert marks(panel, MEASURED) == set(zip(frame[over], frame["decode_tok_s"], strict=True))
    assert marks(panel, BEST) == {(frame[over].iloc[-1], frame["decode_tok_s"].iloc[-1])}
    (drawn,) = (c for c in panel.collections if isinstance(c, LineCollection))
    ends = [[float(y) for _, y in segment] for segment in drawn.get_segments()]
    assert ends == [[pytest.approx(value - 2), pytest.approx(value + 2)] for value in frame["decode_tok_s"]]


@pytest.mark.parametrize(
    "frame",
    [
        pd.concat([measured_grid(K=1), measured_grid(K=2)]),
        pd.concat([measured_grid(), measured_grid(concurrency=4)]),
        pd.concat([measured_grid(), measured_grid(method="lookahead")]),
        measured_grid().assign(decode_tok_s=NOTHING),
        measured_grid().drop(columns=["tokens_per_forward", "best"]),
    ],
)
def test_what_is_no_grid_of_one_method_is_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, check=wording):
        contour(frame, "n", "pool")


@pytest.mark.parametrize(("plain", "wins"), [(70.0, False), (100.0, True)])
def test_plain_decoding_is_on_the_picture_and_may_be_the_fastest(plain: float, wins: bool) -> None:
    grid = measured_grid()
    grid = set_at(grid.assign(speedup=grid["decode_tok_s"] / plain), 64, 4, best=True)
    why = "other processes took 31% of the cores"
    figure = contour(
        pd.concat([cells([{"method": "ar", "decode_tok_s": plain}]), grid.assign(disturbed=why)]), "n", "pool"
    )
    assert f"{plain:.1f} tok/s" in note(figure)
    assert why in note(figure)
    assert ("the best configuration is 0.88 of it" in note(figure)) == wins
    assert marks(speed(figure), BEST_METHOD if wins else BEST) == {(64, 4)}
    drawn = {line.get_label() for line in speed(figure).lines}
    assert (PLAIN in drawn) == (not wins), "a speed beyond the scale has no line"
