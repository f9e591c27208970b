"""What varies in a sweep decides which pictures it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import NOTHING, busy, cells, measured_grid

from specbench.report.charts.over_axis import over_option
from specbench.report.charts.sweep_charts import called_for, write_sweep_charts


def names(*frames: pd.DataFrame) -> list[str]:
    return [picture.name for picture in called_for(pd.concat(frames, ignore_index=True))]


def test_which_pictures_contours_fronts_and_crossings_make() -> None:
    assert names(measured_grid()) == ["contour-jf-n-pool"]
    assert names(measured_grid(pools=(4,))) == ["contour-jf-n"]
    assert names(measured_grid((8,), (4,))) == []
    other = measured_grid(method="lookahead").rename(columns={"n": "w", "pool": "g"})
    assert names(measured_grid(concurrency=1), measured_grid(concurrency=8), other) == [
        "contour-jf-n-pool-c1", "contour-jf-n-pool-c8", "contour-lookahead-w-g-c1",
    ]  # fmt: skip
    ar = busy("ar", {1: 1.0, 8: 1.0})
    assert names(ar, busy("jf", {1: 1.5, 8: 0.9})) == ["crossing"]
    assert names(ar, busy("jf", {8: 0.9})) == []
    assert names(ar, busy("jf", {1: NOTHING, 8: NOTHING})) == []
    right = {"method": "ar", "accuracy": 0.8}
    assert names(cells([right, {"accuracy": 0.7}])) == ["pareto"]
    assert names(cells([right, {"accuracy": 0.7}, {"concurrency": 4, "accuracy": 0.7}, {"concurrency": 8}])) == [
        "pareto-c1", "pareto-c4",
    ]  # fmt: skip
    assert names(cells([right, {"decode_tok_s": 50.0}])) == []  # AR alone is no comparison
    assert names(measured_grid(), measured_grid(concurrency=2).assign(decode_tok_s=NOTHING)) == ["contour-jf-n-pool-c1"]
    assert names(cells([{"method": "ar"}])) == []
    sizes = [{"n": n, "accuracy": 0.7, "speedup": 1.5} for n in (8, 16)]
    assert names(cells([right, *sizes])) == ["contour-jf-n", "over-jf-n", "pareto"]
    assert called_for(measured_grid().iloc[:0]) == []


def test_speedup_and_right_answers_stand_over_an_option() -> None:
    rows = [
        {"n": n, "pool": pool, "accuracy": right, "speedup": speedup}
        for pool in (1, 4) for n, speedup, right in ((8, 1.5, 0.7), (16, 2.0, 0.6), (32, 1.8, 0.5))
    ]  # fmt: skip
    figure = over_option(cells([{"method": "ar", "accuracy": 0.8}, *rows]), "jf", "n")
    speedup, right = figure.axes
    for panel, values in ((speedup, [1.5, 2.0, 1.8]), (right, [0.7, 0.6, 0.5])):
        drawn: list[Any] = list(panel.containers)
        lines = [container.lines[0] for container in drawn]
        assert [list(line.get_ydata()) for line in lines] == [values, values]
        assert [line.get_xdata() == pytest.approx([8, 16, 32], rel=0.03) for line in lines] == [True, True]
    legend: Any = speedup.get_legend()
    assert {text.get_text() for text in legend.get_texts()} == {"ar", "pool 1", "pool 4"}


def test_options_of_many_values_make_figures_or_axes() -> None:
    frames = [measured_grid((8, 16), (1, 2, 4), K=k) for k in range(1, 6)]
    (picture,) = called_for(pd.concat(frames, ignore_index=True))
    assert picture.name == "contour-jf-K-pool"
    drawn = picture.draw()
    assert drawn.axes[0].get_title(loc="left") == "n 8: tokens per forward"
    ns = (1, 2, 4, 8, 16, 32)
    assert names(*(measured_grid(ns, ns, K=k) for k in range(5))) == [f"contour-jf-n-pool-K_{k}" for k in range(5)]
    assert names(*(measured_grid(ns, ns, K=k) for k in range(4))) == ["contour-jf-n-pool"]
    both = [measured_grid(ns, ns, K=k, r=r) for r in (0.5, 0.9) for k in (1, 2, 3)]
    assert names(*both) == ["contour-jf-n-pool-r_0.5", "contour-jf-n-pool-r_0.9"]  # K has more values: the panels
    ns = (1, 2, 4, 8, 16, 32)
    frames = [measured_grid(ns, ns, draft=word) for word in ("a/b", "a-b", "../c", "A b", "d")]
    made = names(*frames)
    assert made == [f"contour-jf-n-pool-draft_{w}" for w in ("a-b", "a-b-2", "..-c", "A-b-3", "d")]


def test_a_slice_is_drawn_on_the_grid_of_the_whole_sweep() -> None:
    slow = measured_grid(concurrency=8, without={(64, 1), (64, 2), (64, 4)})
    _, picture = called_for(pd.concat([measured_grid(), slow], ignore_index=True))
    missing = [c for c in picture.draw().axes[0].collections if c.get_label() == "not measured"]
    assert [len(c.get_offsets()) for c in missing] == [3]  # type: ignore[arg-type]


def test_files_are_written_in_that_order_and_again_the_same(tmp_path: Path) -> None:
    frame = pd.concat([measured_grid(accuracy=0.8), cells([{"method": "ar", "accuracy": 0.8}])], ignore_index=True)
    written = write_sweep_charts(frame, tmp_path, "a model")
    assert written == [tmp_path / f"{name}.png" for name in ("contour-jf-n-pool", "over-jf-n", "pareto")]
    first = [path.read_bytes() for path in written]
    assert all(content.startswith(b"\x89PNG") for content in first)
    assert [path.read_bytes() for path in write_sweep_charts(frame, tmp_path, "a model")] == first
    assert sorted(tmp_path.iterdir()) == sorted(written)
