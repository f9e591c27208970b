"""Place labels next to the points of a chart, so that they hide neither points nor each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from specbench.report.charts import style
from specbench.report.charts.sweep_cells import Floats

_DIRECTIONS = ((1, 0), (0.7, 0.7), (0.7, -0.7), (-1, 0), (-0.7, 0.7), (-0.7, -0.7), (0, 1), (0, -1))
_DISTANCES = (11.0, 17.0, 26.0, 38.0, 52.0, 70.0, 90.0)  # from the point, in points of 1/72 inch
_CLEARANCE = 5.0  # around a point, in pixels
_LINE = 2.0  # half the width kept free around lines, in pixels


@dataclass(frozen=True)
class _Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: _Box) -> float:
        """Area of the intersection."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, wide) * max(0.0, high)

    def outside(self, other: _Box) -> float:
        """Area of this box outside the other."""
        return (self.right - self.left) * (self.top - self.bottom) - self.shared(other)


def place(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    avoid: Floats,
    lines: Sequence[Floats] = (),
) -> list[Annotation]:
    """Write each text near its point, in this order, with a thin line to the point.

    Args:
        axes: with everything else drawn and limits set.
        avoid: [n, 2] further points, in the axes' data, that no text should hide.
        lines: [k, 2] corners of each line that no text should hide, in the axes' data.
    """
    if not points:
        return []
    figure = axes.figure
    assert isinstance(figure, Figure)
    assert isinstance(figure.canvas, FigureCanvasAgg)
    figure.draw_without_rendering()  # the layout moves the axes
    scale = figure.dpi / 72  # pixels a point of 1/72 inch
    frame = _Box(*axes.bbox.extents)
    marks = axes.transData.transform(np.concatenate([np.asarray(points).reshape(-1, 2), avoid.reshape(-1, 2)]))
    taken = [_around(x, y, _CLEARANCE) for x, y in marks]
    for line in lines:
        taken += [_around(x, y, _LINE) for x, y in _sampled(axes.transData.transform(line))]
    written = []
    for point, text, at in zip(points, texts, marks, strict=False):
        note = axes.annotate(
            text, point, (0, 0), textcoords="offset points", fontsize=style.SMALL_SIZE, zorder=8,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            arrowprops={"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        # The annotation's own extent would include its line.
        extent = Text.get_window_extent(note, figure.canvas.get_renderer())
        box = _freest(_candidates(at, extent.width, extent.height, scale), frame, taken)
        note.set_position(((box.left - at[0]) / scale, (box.bottom - at[1]) / scale))
        note.set_in_layout(False)  # otherwise it would move the axes
        taken.append(box)
        written.append(note)
    return written


def _around(x: float, y: float, clearance: float) -> _Box:
    return _Box(x - clearance, y - clearance, x + clearance, y + clearance)


def _sampled(corners: Floats) -> Floats:
    """[n, 2] points on the line through these corners, too close together for text in between."""
    pieces = [
        np.linspace(start, stop, 1 + int(np.hypot(*(stop - start)) // (2 * _LINE)), endpoint=False)
        for start, stop in pairwise(corners)
    ]
    return np.concatenate([*pieces, corners[-1:]])


def _candidates(at: Floats, width: float, height: float, scale: float) -> Iterator[_Box]:
    """Candidate positions for a text of this size around a point, the nearest first; in pixels."""
    for distance in _DISTANCES:
        for right, up in _DIRECTIONS:
            left = at[0] + right * distance * scale - width * (0.0 if right > 0 else 0.5 if right == 0 else 1.0)
            bottom = at[1] + up * distance * scale - height * (1 - up) / 2
            yield _Box(left, bottom, left + width, bottom + height)


def _freest(places: Iterator[_Box], frame: _Box, taken: Sequence[_Box]) -> _Box:
    """The first position inside the frame without overlap, or the one with least overlap."""
    return min(places, key=lambda box: 3 * box.outside(frame) + sum(box.shared(other) for other in taken))
