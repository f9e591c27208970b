"""Common style of all charts: sizes, fonts, colours for colour-blind readers, PNG and SVG output.

Uses matplotlib without pyplot, so that drawing has no global state and needs no display. All drawing happens inside
:func:`styled`; the user's ``matplotlibrc`` has no effect, and equal data give equal bytes.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from specbench.common import write_atomic
from specbench.report.document import printable

#: Inches: the width of a page, half of it, and the height of a panel.
WIDTH, HALF_WIDTH, HEIGHT = 10.0, 6.4, 4.0
DPI = 150

INK, FAINT, GRID = "#1A1A1A", "#5A5A5A", "#DDDDDD"

#: Okabe & Ito's palette without yellow, which is invisible on white. Black is for the baseline.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
BASELINE_COLOUR = "#000000"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Colour map for one quantity: perceptually uniform, also for colour-blind readers.
COLOUR_MAP = "cividis"

TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 10.5, 9.0, 8.0
_CHARACTERS_AN_INCH = 15.5  # of DejaVu Sans at SMALL_SIZE; other sizes scale with it

# DejaVu Sans comes with matplotlib, so glyphs are the same on every machine.
_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,  # dollar signs in names are not math mode
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
#: Settings of cards that differ from large charts; cards are 360 points wide, and a point is a browser's pixel.
CARD_WIDTH = 360.0
CARD: dict[str, Any] = {
    "font.size": 11.5,
    "axes.titlesize": 11.0,
    "axes.labelsize": 11.0,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 11.0,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": FAINT,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "xtick.bottom": False,
    "ytick.left": False,
    "lines.markersize": 9.0,
    "lines.markeredgecolor": "auto",
    "errorbar.capsize": 3.5,
    "legend.handlelength": 0.9,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.4,
    "legend.borderaxespad": 0.2,
    "svg.fonttype": "none",  # text stays text, which can be searched, selected and read aloud
}
_NOT_A_STYLE = {"backend", "backend_fallback", "interactive", "toolbar"}


@contextmanager
def styled(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw in the project's style, independent of the user's configuration.

    Also a decorator. Matplotlib reads settings when it creates an artist, so all drawing belongs inside.
    """
    settings: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _NOT_A_STYLE}
    settings |= {**_SETTINGS, **(more or {})}
    with matplotlib.rc_context(settings):
        yield


def panels(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    height: float | None = None,
    layout: Literal["constrained"] | None = "constrained",
    **axes: Any,
) -> tuple[Figure, npt.NDArray[np.object_]]:
    """A figure and its axes, [rows, columns], laid out so that nothing is clipped; ``height`` in inches."""
    figure = Figure(figsize=(width, rows * HEIGHT if height is None else height), layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **axes)


def titled(figure: Figure, title: str, note: str = "") -> None:
    """Put ``title`` above and ``note`` below a figure, aligned left and wrapped to its width.

    Existing line breaks are kept.
    """
    figure.suptitle(_wrapped(figure, title, TITLE_SIZE), x=0.01, ha="left", fontsize=TITLE_SIZE)
    if note:
        wrapped = _wrapped(figure, note, SMALL_SIZE)
        figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=SMALL_SIZE, color=FAINT)


def _wrapped(figure: Figure, text: str, size: float) -> str:
    characters = max(20, int(figure.get_figwidth() * _CHARACTERS_AN_INCH * SMALL_SIZE / size))
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines())


def series(index: int) -> dict[str, Any]:
    """Colour and marker of the ``index``-th method; markers differ too, for readers who cannot see the colours."""
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}


def plain_ticks(axes: Axes, values: npt.ArrayLike, *, which: str = "x") -> None:
    """Put ticks at exactly these values, as plain numbers: 64, not 2⁶."""
    at = np.unique(np.asarray(values, dtype=np.float64))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(at, labels=[f"{value:g}" for value in at])
    axis.set_ticks([], minor=True)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG atomically.

    The bytes depend only on the drawing and on the versions of matplotlib and its libraries.
    """
    write_atomic(path, png(figure))
    return path


def png(figure: Figure) -> bytes:
    """The bytes that :func:`save` writes."""
    content = BytesIO()
    with styled():
        figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()


_SVG, _TIP = "http://www.w3.org/2000/svg", "tip: "
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def width_of(words: str, bold: bool = False) -> float:
    """Approximate width of text in a card, in points; DejaVu Sans is wider than most fonts."""
    return (0.68 if bold else 0.555) * float(CARD["font.size"]) * len(words)


def cut(words: str, width: float, bold: bool = False) -> str:
    """Cut text to one line of a width in points, with an ellipsis."""
    line = printable(" ".join(words.split()))
    most = max(2, int(width / width_of("x", bold)))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def tip(mark: Artist, words: str) -> None:
    """Attach a tooltip to a mark; it is kept in the mark's id until the drawing is converted to SVG."""
    mark.set_gid(_TIP + printable(" ".join(words.split())))


def svg(figure: Figure, name: str, says: str) -> str:
    """The chart as an SVG document with real text; ``name`` is unique in a page, ``says`` is the text alternative.

    Numbers are rounded, so that rounding differences between machines do not show.
    """
    for artist in figure.findobj():
        artist.set_clip_on(False)  # nothing exceeds its panel, so clip paths are unnecessary
    content = StringIO()
    with styled({**CARD, "svg.hashsalt": printable(name)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser's fonts have it
        figure.savefig(content, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(content.getvalue())
    used = {found for element in root.iter() for value in element.attrib.values() for found in _USED.findall(value)}
    for element in list(root.iter()):
        words, element.tail = element.attrib.get("id", ""), "\n"
        if words not in used:
            element.attrib.pop("id", None)
        element.attrib |= {key: _NUMBER.sub(_rounded, " ".join(at.split())) for key, at in element.attrib.items()}
        if words.startswith(_TIP):
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = words.removeprefix(_TIP)
        elif element.text and not element.text.strip():
            element.text = None
    root.attrib |= {"role": "img", "aria-label": printable(" ".join(says.split()))}
    return ElementTree.tostring(root, encoding="unicode")


_USED, _NUMBER = re.compile(r"^#(\w+)$"), re.compile(r"-?\d+\.\d+")


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2) + 0.0:g}"  # adding zero turns -0 into 0
