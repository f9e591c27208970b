"""The report's own pictures, drawn without a plotting library so that their bytes are the same on every machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specbench.report.page import svg
from specbench.report.page.svg import AMBER, BLUE, FAINT, GREEN, GRID, INK, ORANGE, PINK, SKY, SMALL, WIDTH, Drawing

Scale = Callable[[float], float]

_EDGE = 8.0  # left and right of everything
METHOD_COLOUR, BASELINE_COLOUR = BLUE, INK
_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER)
_LINE = 16.0  # between names in a column
_MOST = 7  # kept tokens of a forward that have a bar of their own


@dataclass(frozen=True)
class Factors:
    """A speedup and what it is made of."""

    label: str
    tokens_per_forward: float
    step_ratio: float
    speedup: float
    low: float | None
    high: float | None


def decomposition(rows: Sequence[Factors]) -> str:
    """Speedup = TPF × step-time ratio, as steps from 1 on a logarithmic axis.

    The upper bar goes from 1 to TPF: what more tokens a forward would gain if a forward cost no more. The lower one
    goes back from there by what its forwards cost more, and ends at the speedup.
    """
    figures = [
        f
        for row in rows
        for f in (row.tokens_per_forward, row.speedup, row.low or row.speedup, row.high or row.speedup)
    ]
    low, high = min(0.95, *figures) / 1.04, max(1.05, *figures) * 1.04
    drawing = Drawing(WIDTH, 30 + 46 * len(rows) + 38, "Speedup as tokens per forward times step-time ratio, by method")

    def x(value: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE) * math.log(value / low) / math.log(high / low)

    _key(drawing, 14, (("TPF", BLUE), ("step-time ratio", ORANGE), ("speedup", INK)))
    bottom = 30.0 + 46 * len(rows)
    ticks = _spread(svg.log_ticks(low, high), x)
    for tick in ticks:
        drawing.text(x(tick), bottom + 15, f"{tick:g}", size=SMALL, colour=FAINT, anchor="middle")
    drawing.text(WIDTH / 2, bottom + 31, "times AR, logarithmic", size=SMALL, colour=FAINT, anchor="middle")
    for at, row in enumerate(rows):
        top = 30.0 + 46 * at
        words = f"{row.tokens_per_forward:.2f} × {row.step_ratio:.2f} = {row.speedup:.2f}"
        drawing.text(_EDGE, top + 12, svg.cut(row.label, WIDTH - 2 * _EDGE - svg.width_of(words) - 8), bold=True)
        drawing.text(WIDTH - _EDGE, top + 12, words, anchor="end")
        for tick in ticks:
            drawing.line(x(tick), top + 16, x(tick), top + 41, FAINT if tick == 1 else GRID, 1.2 if tick == 1 else 1.0)
        _between(drawing, x(1), x(row.tokens_per_forward), top + 18, BLUE)
        _between(drawing, x(row.tokens_per_forward), x(row.speedup), top + 28, ORANGE)
        _whisker(drawing, x, row, top + 28)
    return drawing.svg()


def _between(drawing: Drawing, start: float, end: float, top: float, colour: str) -> None:
    drawing.box(min(start, end), top, max(1.0, abs(end - start)), 9, colour)


def _whisker(drawing: Drawing, x: Scale, row: Factors, top: float) -> None:
    middle, at = top + 4.5, x(row.speedup)
    if row.low is not None and row.high is not None:
        drawing.line(x(row.low), middle, x(row.high), middle, INK, 1.6)
        for end in (row.low, row.high):
            drawing.line(x(end), middle - 4, x(end), middle + 4, INK, 1.6)
    drawing.shape([(at - 5, middle), (at, middle - 6), (at + 5, middle), (at, middle + 6)], INK)


def phases(steps: Mapping[str, Mapping[str, float]]) -> str:
    """Where a step's time goes, in milliseconds, a stacked bar for each method.

    Args:
        steps: method -> phase -> seconds; the same phases for all.
    """
    names = list(next(iter(steps.values())))
    colours = dict(zip(names, _COLOURS, strict=False))
    ticks = svg.nice_ticks(1e3 * max(sum(spent.values()) for spent in steps.values()))
    head = 22.0 * math.ceil(len(names) / 3)
    drawing = Drawing(WIDTH, head + 36 * len(steps) + 44, "Milliseconds of a step by phase and method")

    def x(value: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE) * value / ticks[-1]

    for at in range(0, len(names), 3):
        _key(drawing, 14 + 22 * (at // 3), [(name, colours[name]) for name in names[at : at + 3]], every=115)
    bottom = head + 6 + 36 * len(steps)
    _ticks_below(drawing, ticks, x, head, bottom, "milliseconds a step")
    for at, (label, spent) in enumerate(steps.items()):
        top, reached = head + 6 + 36 * at, 0.0
        total = f"{1e3 * sum(spent.values()):.3g} ms"
        drawing.text(_EDGE, top + 12, svg.cut(label, WIDTH - 2 * _EDGE - svg.width_of(total) - 8), bold=True)
        drawing.text(WIDTH - _EDGE, top + 12, total, anchor="end")
        for name in names:
            took = 1e3 * spent[name]
            wide = x(reached + took) - x(reached)
            drawing.box(x(reached), top + 17, wide, 13, colours[name], f"{name} {took:.3g} ms")
            reached += took
    return drawing.svg()


def accepted(counts: Mapping[str, Counter[int]]) -> str:
    """How many tokens a target forward kept: a small histogram for each method, on one scale.

    Args:
        counts: method -> kept tokens -> forwards.
    """
    most = max(share for found in counts.values() for share in shares(found).values())
    columns = min(3, len(counts))
    wide, high = (WIDTH - 2 * _EDGE + 10) / columns, 104.0
    lines = math.ceil(len(counts) / columns)
    drawing = Drawing(WIDTH, lines * high + 18, "Share of target forwards by the tokens that they kept")
    ticks = [tick for tick in svg.nice_ticks(100 * most, 2) if tick <= 100]
    for at, (label, found) in enumerate(counts.items()):
        left, top = _EDGE + (at % columns) * wide, (at // columns) * high
        inner, floor = wide - 10, top + 84
        drawing.text(left, top + 14, svg.cut(label, inner), bold=True)
        for tick in ticks:
            y = floor - 54 * tick / ticks[-1]
            drawing.line(left, y, left + inner, y, GRID)
            if tick:
                drawing.text(left + inner, y - 2, f"{tick:g}%", size=9.5, colour=FAINT, anchor="end")
        each = inner / (_MOST + 1)
        for kept, share in shares(found).items():
            bar = 54 * 100 * share / ticks[-1]
            place = left + (kept - 1) * each
            words = f"{kept_word(kept)} kept: {share:.1%} of the forwards"
            drawing.box(place + 0.5, floor - bar, each - 1, bar, BLUE, words)
            drawing.text(place + each / 2, floor + 12, kept_word(kept), size=9.5, colour=FAINT, anchor="middle")
    drawing.text(WIDTH / 2, lines * high + 10, "tokens kept by a forward", size=SMALL, colour=FAINT, anchor="middle")
    return drawing.svg()


def shares(counts: Counter[int]) -> dict[int, float]:
    """Share of the forwards by kept tokens from 1 up; the last one stands for all above it too."""
    total = sum(counts.values())
    found = dict.fromkeys(range(1, _MOST + 2), 0)
    for kept, times in counts.items():
        found[min(max(kept, 1), _MOST + 1)] += times
    return {kept: times / total if total else 0.0 for kept, times in found.items()}


def kept_word(kept: int) -> str:
    """How a bar is labelled."""
    return f"{kept}" if kept <= _MOST else f"{kept}+"


@dataclass(frozen=True)
class Dumbbell:
    """A claimed speedup, over a bandwidth-bound baseline, and with both at the bound where that is known."""

    label: str
    claimed: float
    over_bound: float
    at_bound: float | None


def dumbbells(rows: Sequence[Dumbbell]) -> str:
    """What claims come to, a line each."""
    each = 40.0
    figures = [f for row in rows for f in (row.claimed, row.over_bound, row.at_bound or 1.0)]
    ticks = svg.nice_ticks(max(figures), 5)
    bottom = 30 + each * len(rows)
    drawing = Drawing(WIDTH, bottom + 38, "Claimed speedups, and what they are over a strong baseline")

    def x(value: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE - 6) * value / ticks[-1]

    _mark(drawing, 14, 10, "dot", ORANGE)
    drawing.text(23, 14, "claimed", size=SMALL)
    _mark(drawing, 92, 10, "ring", BLUE)
    drawing.text(101, 14, "over bound AR", size=SMALL)
    _mark(drawing, 202, 10, "triangle", GREEN)
    drawing.text(211, 14, "both at the bound", size=SMALL)
    _ticks_below(drawing, ticks, x, bottom, bottom, "times AR")
    for at, row in enumerate(rows):
        top = 30 + each * at
        middle = top + 26
        drawing.text(_EDGE, top + 13, svg.cut(row.label, WIDTH - 2 * _EDGE, SMALL), size=SMALL)
        drawing.line(x(ticks[0]), middle, x(ticks[-1]), middle, GRID)
        drawing.line(x(1), middle - 7, x(1), middle + 7, FAINT, 1.2)
        drawing.line(x(row.over_bound), middle, x(row.claimed), middle, "#9a9a9a", 2)
        if row.at_bound is not None:
            _mark(drawing, x(row.at_bound), middle, "triangle", GREEN)
        _mark(drawing, x(row.over_bound), middle, "ring", BLUE)
        _mark(drawing, x(row.claimed), middle, "dot", ORANGE)
    return drawing.svg()


def _mark(drawing: Drawing, x: float, y: float, kind: str, colour: str) -> None:
    """A disc, a ring or a triangle: told apart by shape as well as by colour."""
    if kind == "triangle":
        drawing.shape([(x - 6, y + 5), (x + 6, y + 5), (x, y - 6)], colour)
        return
    drawing.dot(x, y, 5.5, colour)
    if kind == "ring":
        drawing.dot(x, y, 2.6, "#ffffff")


@dataclass(frozen=True)
class Point:
    """A point of a scatter, with the half-axes of its interval where it has one."""

    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    colour: str = BLUE


def scatter(points: Sequence[Point], across: str, up: str, *, percent: bool, says: str) -> str:
    """Points with their names in a column beside them, so that no number of points hides a name.

    Args:
        across, up: what the axes are.
        percent: the upward axis is a share.
    """
    high = max(220.0, 17.0 * len(points) + 30)
    drawing = Drawing(WIDTH, high + 40, says)
    left, right, top = 40.0, WIDTH - 118.0, 18.0
    ticks = svg.nice_ticks(max(point.x for point in points) * 1.05, 3)
    most = max(max(point.high or point.y, point.y) for point in points)
    rises = [0.0, 0.25, 0.5, 0.75, 1.0] if percent and most > 0.5 else svg.nice_ticks(max(most, 1e-9))

    def x(value: float) -> float:
        return left + (right - left) * value / ticks[-1]

    def y(value: float) -> float:
        return high - (high - top) * value / rises[-1]

    for tick in ticks:
        drawing.line(x(tick), top, x(tick), high, GRID)
        drawing.text(x(tick), high + 15, f"{tick:g}", size=SMALL, colour=FAINT, anchor="middle")
    for tick in rises:
        drawing.line(left, y(tick), right, y(tick), GRID)
        shown = f"{100 * tick:g}%" if percent else f"{tick:g}"
        drawing.text(left - 5, y(tick) + 4, shown, size=SMALL, colour=FAINT, anchor="end")
    drawing.text((left + right) / 2, high + 32, across, size=SMALL, colour=FAINT, anchor="middle")
    drawing.text(4, 11, up, size=SMALL, colour=FAINT)
    for point, place in zip(*_beside(points, y, top + 4, high), strict=True):
        drawing.line(x(point.x) + 5, y(point.y), right + 10, place, "#b5b5b5", 0.8)
        drawing.text(right + 13, place + 4, svg.cut(point.label, WIDTH - right - 14, SMALL), size=SMALL)
    for point in points:
        if point.low is not None and point.high is not None:
            drawing.line(x(point.x), y(point.low), x(point.x), y(point.high), point.colour, 1.0)
        drawing.dot(x(point.x), y(point.y), 5, point.colour, f"{point.label}: {point.x:.3g}, {point.y:.3g}")
    return drawing.svg()


def _beside(points: Sequence[Point], y: Scale, top: float, bottom: float) -> tuple[list[Point], list[float]]:
    """Points from above to below, and a line's height for each of their names, near its own and 16 from the next."""
    # Of points at one height the lines to their names cross in one order of the two, above and below.
    middle = (top + bottom) / 2
    ordered = sorted(points, key=lambda point: (y(point.y), point.x if y(point.y) > middle else -point.x))
    places: list[float] = []
    for point in ordered:
        places.append(max(y(point.y), places[-1] + _LINE if places else top))
    for at in reversed(range(len(places))):
        places[at] = min(places[at], places[at + 1] - _LINE if at + 1 < len(places) else bottom)
    return ordered, places


def _key(drawing: Drawing, y: float, names: Sequence[tuple[str, str]], every: float = 0.0) -> None:
    """What the colours are, beside each other; ``every`` so many pixels, or as wide as the words need."""
    x = _EDGE
    for name, colour in names:
        drawing.box(x, y - 9, 10, 10, colour)
        drawing.text(x + 14, y, name, size=SMALL)
        x += every or svg.width_of(name, SMALL) + 28


def _spread(ticks: Sequence[float], x: Scale) -> list[float]:
    """Those of the ticks whose labels do not meet; 1 is always one of them."""
    found = [1.0] if 1.0 in ticks else []
    for tick in ticks:
        if all(abs(x(tick) - x(other)) >= 30 for other in found):
            found.append(tick)
    return sorted(found)


def _ticks_below(drawing: Drawing, ticks: Sequence[float], x: Scale, top: float, bottom: float, words: str) -> None:
    for tick in ticks:
        drawing.line(x(tick), top, x(tick), bottom, GRID)
        anchor = "start" if tick == ticks[0] else "end" if tick == ticks[-1] else "middle"
        drawing.text(x(tick), bottom + 15, f"{tick:g}", size=SMALL, colour=FAINT, anchor=anchor)
    drawing.text(WIDTH / 2, bottom + 31, words, size=SMALL, colour=FAINT, anchor="middle")
