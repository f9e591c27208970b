"""Decide which charts a sweep needs, and write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.report.charts import style
from specbench.report.charts.contours import contour
from specbench.report.charts.crossing import crossing
from specbench.report.charts.over_axis import over_option
from specbench.report.charts.pareto import pareto
from specbench.report.charts.sweep_cells import check, floats, is_numeric, methods, options, shown
from specbench.report.charts.user_lines import user_lines
from specbench.report.charts.users import users
from specbench.results import BASELINE

_PANELS = 4  # of one figure: more of them would be too small or too far apart to compare


@dataclass(frozen=True)
class Picture:
    """A chart that is not drawn yet: all charts of a large sweep would need too much memory."""

    name: str
    draw: Callable[[], Figure]


def called_for(cells: pd.DataFrame, caption: str = "") -> list[Picture]:
    """The charts that a sweep needs, depending on what varies in it.

    * A method with two or more varying numeric options: contours over the two with most values, for each concurrency
      and each combination of the other varying options. One of these with at most four values becomes panels of one
      figure. A method with one such option: a line over it.
    * Accuracy and such an option, at one concurrency: speedup and accuracy over it.
    * Several concurrencies: speedup over concurrency in one picture, throughput against each user's speed in another.
    * Accuracy: speed against accuracy, for each concurrency.
    """
    check(cells)
    found = [picture for method in methods(cells) for picture in _contours(cells, method, caption)]
    mine = cells[(cells["method"] != BASELINE) & np.isfinite(floats(cells, "speedup"))]
    if mine["concurrency"].nunique() > 1:
        found.append(Picture("crossing", partial(crossing, cells, caption=caption)))
        if all(user_lines(cells)):
            found.append(Picture("users", partial(users, cells, caption=caption)))
    busy = cells["concurrency"].nunique() > 1
    if not busy:
        found += [picture for method in methods(cells) for picture in _over(cells, method, caption)]
    for concurrency, part in cells.groupby("concurrency"):
        scored = np.isfinite(floats(part, "accuracy")) & np.isfinite(floats(part, "decode_tok_s"))
        if (scored & part["method"].ne(BASELINE)).any():
            name = f"pareto-c{shown(concurrency)}" if busy else "pareto"
            found.append(Picture(name, partial(pareto, part, caption=caption)))
    return _distinct_names(found)


def write_sweep_charts(cells: pd.DataFrame, folder: Path, caption: str = "") -> list[Path]:
    """Draw the charts of :func:`called_for` as PNG files into an existing folder, and return the files in order."""
    return [style.save(picture.draw(), folder / f"{picture.name}.png") for picture in called_for(cells, caption)]


def _contours(cells: pd.DataFrame, method: str, caption: str) -> Iterator[Picture]:
    mine = cells[cells["method"] == method]
    varying = {option: count for option, count in options(mine).items() if count > 1}
    # sorted() is stable: for options with equally many values, the first column comes first.
    axes = sorted((option for option in varying if is_numeric(mine[option])), key=lambda option: -varying[option])[:2]
    if not axes:
        return
    others = [option for option in varying if option not in axes]
    facet = max((o for o in others if varying[o] <= _PANELS), key=lambda option: varying[option], default=None)
    sliced = [option for option in others if option != facet]
    busy = cells["concurrency"].nunique() > 1
    for values, part in mine.groupby([*sliced, "concurrency"], sort=False, dropna=False):
        if not np.isfinite(floats(part.dropna(subset=[*axes]), "decode_tok_s")).any():
            continue
        *settings, concurrency = values
        name = ["contour", method, *axes, *(f"{o}_{shown(v)}" for o, v in zip(sliced, settings, strict=True))]
        name += [f"c{shown(concurrency)}"] if busy else []
        plain = cells[(cells["method"] == BASELINE) & (cells["concurrency"] == concurrency)]
        draw = partial(contour, pd.concat([plain, part]), *axes, facet=facet, grid=mine, caption=caption)
        yield Picture(re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(name)), draw)


def _over(cells: pd.DataFrame, method: str, caption: str) -> Iterator[Picture]:
    mine = cells[(cells["method"] == method) & np.isfinite(floats(cells, "accuracy"))]
    varying = {option: count for option, count in options(mine).items() if count > 1 and is_numeric(mine[option])}
    if varying:
        option = max(varying, key=lambda name: varying[name])
        yield Picture(f"over-{method}-{option}", partial(over_option, cells, method, option, caption=caption))


def _distinct_names(found: list[Picture]) -> list[Picture]:
    """Number charts whose names collide, as those of "a/b" and "a-b" do."""
    taken: set[str] = set()
    named = []
    for picture in found:
        name, number = picture.name, 1
        while name.lower() in taken:  # some file systems ignore case
            number += 1
            name = f"{picture.name}-{number}"
        taken.add(name.lower())
        named.append(Picture(name, picture.draw))
    return named
