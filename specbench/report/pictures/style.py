"""The one look of the project's pictures: sizes, fonts, colours that colour-blind readers can tell apart, PNG files.

Object-oriented matplotlib without pyplot, so that drawing holds no global state and needs no display. Whoever draws
does it inside :func:`styled`; the reader's own ``matplotlibrc`` changes nothing, and equal data give equal bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from specbench.common.files import write_atomic

#: Inches: a whole page's width, half of one, and the height of one panel.
WIDTH, HALF_WIDTH, HEIGHT = 10.0, 6.4, 4.0
DPI = 150

INK, FAINT, GRID = "#1A1A1A", "#5A5A5A", "#DDDDDD"

#: Okabe & Ito's palette without its yellow, which vanishes on white. Black is the baseline's.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
BASELINE_COLOUR = "#000000"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Of one quantity over a plane: even in lightness, and the same to colour-blind readers.
COLOUR_MAP = "cividis"

TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 10.5, 9.0, 8.0
_CHARACTERS_AN_INCH = 15.5  # of DejaVu Sans at SMALL_SIZE; other sizes scale with it

# DejaVu Sans comes with matplotlib: the same glyphs on every machine.
_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT_SIZE,
    "axes.titlesize": TEXT_SIZE,
    "axes.labelsize": TEXT_SIZE,
    "xtick.labelsize": SMALL_SIZE,
    "ytick.labelsize": SMALL_SIZE,
    "legend.fontsize": SMALL_SIZE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "errorbar.capsize": 2.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": DPI,
}
_NOT_A_STYLE = {"backend", "backend_fallback", "interactive", "toolbar"}


@contextmanager
def styled() -> Iterator[None]:
    """Everything drawn inside has the project's look, whatever the reader's configuration says.

    Also a decorator. Settings are read when an artist is made, so the whole of the drawing belongs inside.
    """
    settings: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _NOT_A_STYLE}
    settings |= _SETTINGS
    with matplotlib.rc_context(settings):
        yield


def panels(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float | None = None, **axes: Any
) -> tuple[Figure, npt.NDArray[np.object_]]:
    """A figure and its axes, [rows, columns], laid out so that nothing is clipped.

    Args:
        width: of the figure, inches.
        height: of the figure, inches; ``HEIGHT`` a row without it.
        axes: further arguments of ``Figure.subplots``, such as ``sharey``.
    """
    figure = Figure(figsize=(width, rows * HEIGHT if height is None else height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **axes)


def titled(figure: Figure, title: str, note: str = "") -> None:
    """Puts ``title`` above and ``note`` below a figure, both from the left edge and wrapped to its width.

    Line breaks of the texts are kept.
    """
    figure.suptitle(_wrapped(figure, title, TITLE_SIZE), x=0.01, ha="left", fontsize=TITLE_SIZE)
    if note:
        wrapped = _wrapped(figure, note, SMALL_SIZE)
        figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=SMALL_SIZE, color=FAINT)


def _wrapped(figure: Figure, text: str, size: float) -> str:
    characters = max(20, int(figure.get_figwidth() * _CHARACTERS_AN_INCH * SMALL_SIZE / size))
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines())


def series(index: int) -> dict[str, Any]:
    """Colour and marker of the ``index``-th of several methods: a marker each, for where colours are not seen."""
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}


def plain_ticks(axes: Axes, values: npt.ArrayLike, *, which: str = "x") -> None:
    """Marks an axis at these values and nowhere else, as plain numbers: 64 and not 2⁶."""
    at = np.unique(np.asarray(values, dtype=np.float64))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(at, labels=[f"{value:g}" for value in at])
    axis.set_ticks([], minor=True)


def save(figure: Figure, path: Path) -> Path:
    """Writes a PNG; ``path`` holds either the old or the whole new picture.

    The bytes depend on what is drawn and on the versions of matplotlib and its libraries, not on time or place.

    Raises:
        EnvironmentRefused: the disk is full or ``path`` cannot be written; nothing is left behind.
    """
    write_atomic(path, png(figure))
    return path


def png(figure: Figure) -> bytes:
    """The picture as :func:`save` writes it."""
    content = BytesIO()
    with styled():
        figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()
