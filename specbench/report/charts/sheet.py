"""Drawings of boxes and text with pixel coordinates, as large as their content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specbench.report.charts import style

#: Font size, and the approximate width of a character.
SIZE, COLUMN = 10.5, 6.4

#: Styles of the boxes: fill, edge, line style of the edge. They differ in lightness or edge as well as in hue.
LOOKS: Mapping[str, tuple[str, str, str]] = {
    "root": ("#E3E3DF", "#333333", "-"),
    "accepted": ("#C9ECDF", "#00694D", "-"),
    "stationary": ("#CFE4F5", "#0072B2", "-"),
    "right": ("#FFFFFF", "#0072B2", "--"),
    "misplaced": ("#F3DBE9", "#8A2F63", ":"),
    "wrong": ("#FAFAF7", "#E4E4E0", "-"),
    "missed": ("#FFF3BD", "#7A6200", "--"),
    "rejected": ("#F1F1EE", "#B5B5B0", "-"),
    "draft-only": ("#FFFFFF", "#767676", ":"),
    "bonus": ("#CFE4F5", "#0072B2", "-"),
}

#: Styles whose text is faint.
FAINT = frozenset({"wrong", "rejected", "draft-only"})

Box = tuple[float, float, float, float]  # left, top, width, height


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty sheet; y grows downwards. Inside :func:`style.styled`."""
    figure, ((axes,),) = style.panels(width=width / 72, height=height / 72, layout=None)
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


def boxes(axes: Axes, look: str, places: Sequence[Box]) -> None:
    """Draw boxes of one style."""
    if places:
        fill, edge, line = LOOKS[look]
        axes.add_collection(
            PatchCollection(_made(places), facecolor=fill, edgecolor=edge, linestyle=line, linewidth=0.8)
        )


def filled(axes: Axes, colour: str, places: Sequence[Box]) -> None:
    """Draw boxes of one colour, without an edge."""
    if places:
        axes.add_collection(PatchCollection(_made(places), facecolor=colour, edgecolor="none"))


def _made(places: Sequence[Box]) -> list[Rectangle]:
    return [Rectangle((left, top), width, height) for left, top, width, height in places]


def words(axes: Axes, left: float, middle: float, label: str, **more: Any) -> None:
    """Write text that starts at ``left`` and is vertically centred at ``middle``."""
    axes.text(left, middle, label, **{"va": "center_baseline", "fontsize": SIZE, **more})


def svg(figure: Figure, name: str, says: str) -> str:
    """As :func:`style.svg`, with one pixel per point, so that text has the size of a page's text."""
    return re.sub(r'\b(width|height)="([\d.]+)pt"', r'\1="\2"', style.svg(figure, name, says), count=2)
