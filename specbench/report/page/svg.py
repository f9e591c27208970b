"""Drawings as SVG text, byte for byte the same everywhere: numbers are rounded, words are left to the reader's fonts.

Widths of words are not known, so nothing is placed by them more closely than :func:`width_of` can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

INK, FAINT, GRID = "#1a1a1a", "#5a5a5a", "#dddddd"

#: Okabe & Ito, as the other pictures have them; black is the baseline's.
BLUE, ORANGE, GREEN, PINK, SKY, AMBER = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"

#: Of a drawing that fits a phone; wider pages put several beside each other.
WIDTH = 360
TEXT, SMALL = 12.0, 11.0
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


class Drawing:
    """Shapes on a white ground, in pixels from the upper left corner."""

    def __init__(self, width: float, height: float, says: str) -> None:
        self.width, self.height, self._says = width, height, says
        self._shapes: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = GRID, thick: float = 1.0, dashes: str = ""
    ) -> None:
        """A straight line."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        ends = f'x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}"'
        self._shapes.append(f'<line {ends} stroke="{colour}" stroke-width="{n(thick)}"{dashed}/>')

    def box(self, x: float, y: float, width: float, height: float, colour: str, title: str = "") -> None:
        """A filled rectangle; ``title`` is shown to those who point at it."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        size = f'x="{n(x)}" y="{n(y)}" width="{n(max(0.0, width))}" height="{n(height)}"'
        self._shapes.append(f'<rect {size} fill="{colour}">{inner}</rect>')

    def shape(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """A filled polygon with a white rim."""
        corners = " ".join(f"{n(x)},{n(y)}" for x, y in points)
        self._shapes.append(f'<polygon points="{corners}" fill="{colour}" stroke="#ffffff" stroke-width="1"/>')

    def dot(self, x: float, y: float, radius: float, colour: str, title: str = "") -> None:
        """A disc with a white rim."""
        at = f'cx="{n(x)}" cy="{n(y)}" r="{n(radius)}"'
        rim = 'stroke="#ffffff" stroke-width="1"'
        inner = f"<title>{escape(title)}</title>" if title else ""
        self._shapes.append(f'<circle {at} fill="{colour}" {rim}>{inner}</circle>')

    def text(
        self, x: float, y: float, words: str, *, size: float = TEXT, colour: str = INK, anchor: str = "start",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Words on the line ``y``."""
        look = f'font-size="{n(size)}" fill="{colour}"'
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        look += ' font-weight="600"' if bold else ""
        self._shapes.append(f'<text x="{n(x)}" y="{n(y)}" {look}>{escape(words)}</text>')

    def svg(self) -> str:
        """The drawing as a document of its own."""
        size = f'width="{n(self.width)}" height="{n(self.height)}" viewBox="0 0 {n(self.width)} {n(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONT}">'
        ground = f'<rect width="{n(self.width)}" height="{n(self.height)}" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(self._says)}</title>", ground, *self._shapes, "</svg>"]) + "\n"


def n(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:g}"  # the zero turns -0 into 0


def width_of(words: str, size: float = TEXT) -> float:
    """About how wide words are; a little more than most fonts need."""
    return 0.58 * size * len(words)


def cut(words: str, width: float, size: float = TEXT) -> str:
    """Words that fit a width, with an ellipsis where they did not."""
    most = max(2, int(width / (0.58 * size)))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def nice_ticks(most: float, count: int = 4) -> list[float]:
    """From 0 to at least ``most`` in steps of 1, 2 or 5 times a power of ten, about ``count`` of them."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [at * step for at in range(math.ceil(most / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two positive numbers."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [factor * 10.0**power for factor in (1, 2, 5)]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
