"""Draw the small charts of a report's page, each as wide as a phone screen.

Coordinates are in points, about one browser pixel each; names that are too long are cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from specbench.report.charts import style
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.results import Accuracy, AtContext, AtPosition, Speedup

_EDGE = 8.0  # left and right of everything
_INNER = style.CARD_WIDTH - 2 * _EDGE
_MOST = 7  # kept tokens of a forward that have a bar of their own
_LINE = 16.0  # between names in a column


@dataclass(frozen=True)
class Factors:
    """A speedup and its factors."""

    label: str
    tokens_per_forward: float
    step_ratio: float
    speedup: Speedup


@style.styled(style.CARD)
def decomposition(rows: Sequence[Factors]) -> Figure:
    """Speedup = TPF × step-time ratio, as steps from 1 on a logarithmic axis."""
    figure, panel = _rows(len(rows), 46, above=26, across="times AR, logarithmic")
    tokens, speedups = np.array([(row.tokens_per_forward, row.speedup.value) for row in rows]).T
    at = np.arange(len(rows))
    ends = [row.speedup.interval or (row.speedup.value, row.speedup.value) for row in rows]
    _times_axis(panel, min(0.95, tokens.min(), np.min(ends)) / 1.04, max(1.05, tokens.max(), np.max(ends)) * 1.04)
    panel.vlines(np.ones(len(rows)), at + 0.33, at + 0.92, color=style.FAINT, linewidth=1.2, zorder=1)
    tpf = panel.barh(at + 0.48, tokens - 1, 0.2, left=1, color=style.PALETTE[0], label="TPF")
    ratio = panel.barh(at + 0.71, speedups - tokens, 0.2, left=tokens, color=style.PALETTE[1], label="step-time ratio")
    lengths = np.abs(np.transpose(ends) - speedups)
    panel.errorbar(speedups, at + 0.71, xerr=lengths, fmt="none", ecolor=style.INK, elinewidth=1.6)
    (speedup,) = panel.plot(speedups, at + 0.71, "D", color=style.INK, markeredgecolor="white", label="speedup")
    for place, row in enumerate(rows):
        words = f"{row.tokens_per_forward:.2f} × {row.step_ratio:.2f} = {row.speedup.value:.2f}"
        _heading(panel, place + 0.24, row.label, words)
    _key(figure, [tpf, ratio, speedup])
    return figure


@style.styled(style.CARD)
def phases(steps: Mapping[str, Mapping[str, float]]) -> Figure:
    """Where a step's time goes, in milliseconds: a stacked bar per method (method -> phase -> seconds)."""
    names = list(next(iter(steps.values())))
    figure, panel = _rows(len(steps), 38, above=6 + 18 * math.ceil(len(names) / 3), across="milliseconds per step")
    spent = 1e3 * np.array([[took[name] for name in names] for took in steps.values()])
    panel.set_xlim(0, 1.02 * spent.sum(axis=1).max() or 1.0)
    style.plain_ticks(panel, _from_zero(panel.get_xlim()[1], 4))
    stacked = []
    for number, name in enumerate(names):
        left, colour = spent[:, :number].sum(axis=1), style.PALETTE[number % len(style.PALETTE)]
        bars = panel.barh(np.arange(len(steps)) + 0.65, spent[:, number], 0.38, left=left, color=colour, label=name)
        for bar, took in zip(bars, spent[:, number], strict=True):
            style.tip(bar, f"{name} {took:.3g} ms")
        stacked.append(bars)
    for place, (label, took) in enumerate(zip(steps, spent.sum(axis=1), strict=True)):
        _heading(panel, place + 0.3, label, f"{took:.3g} ms")
    _key(figure, stacked)
    return figure


@style.styled(style.CARD)
def accepted(counts: Mapping[str, Counter[int]]) -> Figure:
    """Tokens kept per target forward (method -> kept tokens -> forwards): a histogram per method, on one scale."""
    spread = {label: list(shares(found).values()) for label, found in counts.items()}
    columns, most = min(3, len(counts)), max(max(found) for found in spread.values())
    lines = math.ceil(len(counts) / columns)
    # One panel for all methods: one per method would take ten times as long.
    figure, panel = _panel(26 + 94 * lines, left=40, top=4, bottom=32)
    wide, high = _MOST + 2.0, 1.7 * most
    lefts, floors = wide * np.arange(columns), -high * np.arange(lines)
    kept = range(1, _MOST + 2)
    panel.set(xlim=(0.4, wide * columns - 0.4), ylim=(-high * (lines - 1), 0.85 * high))
    rises = _from_zero(1.1 * most, 2)
    panel.set_yticks(
        [floor + rise for floor in floors for rise in rises], [f"{100 * rise:g}%" for _ in floors for rise in rises]
    )
    panel.set_xticks(np.add.outer(lefts, kept).ravel(), [kept_word(each) for each in kept] * columns)
    panel.grid(visible=False, axis="x")
    panel.tick_params("x", labelsize=9.5)
    panel.set_xlabel("tokens kept per forward")
    for number, (label, found) in enumerate(spread.items()):
        left, floor = lefts[number % columns], floors[number // columns]
        panel.text(left + 0.5, floor + 1.12 * most, style.cut(label, 300 / columns, bold=True), weight="bold")
        bars = panel.bar(left + np.array(kept), found, 0.88, bottom=floor, color=style.PALETTE[0])
        for each, share, bar in zip(kept, found, bars, strict=True):
            style.tip(bar, f"{kept_word(each)} kept: {share:.1%} of the forwards")
    return figure


def shares(counts: Counter[int]) -> dict[int, float]:
    """Share of the forwards by kept tokens, from 1 up; the last entry includes all larger counts."""
    total = sum(counts.values())
    found = dict.fromkeys(range(1, _MOST + 2), 0)
    for kept, times in counts.items():
        found[min(max(kept, 1), _MOST + 1)] += times
    return {kept: times / total if total else 0.0 for kept, times in found.items()}


def kept_word(kept: int) -> str:
    """Label of a bar."""
    return f"{kept}" if kept <= _MOST else f"{kept}+"


#: Draft positions that a chart and its table show.
POSITIONS = 8


@style.styled(style.CARD)
def acceptance(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Share of the drafts accepted at each position (method -> position -> share), a line per method."""
    figure, panel = _curves(len(curves), "position in the draft")
    lines, last = [], 1
    for number, (label, found) in enumerate(curves.items()):
        shown = [(at, 100 * share) for at, share in found.items() if at <= POSITIONS]
        lines += panel.plot(*zip(*shown, strict=True), **style.series(number), label=style.cut(label, 90))
        last = max(last, len(shown))
    panel.set_xlim(0.7, last + 0.3)
    style.plain_ticks(panel, range(1, last + 1))
    _heights(figure, panel, lines, 104)
    panel.set_yticks(range(0, 101, 25), [f"{share}%" for share in range(0, 101, 25)])
    return figure


@style.styled(style.CARD)
def positions(curves: Mapping[str, Sequence[AtPosition]]) -> Figure:
    """Speedup by position in the answer: a line per method, with the intervals of its windows."""
    figure, panel = _curves(len(curves), "tokens of the answer, up to")
    panel.set_xscale("log", base=2)
    style.plain_ticks(panel, sorted({at.end for found in curves.values() for at in found}))
    panel.axhline(1.0, color=style.FAINT, linewidth=1.2, zorder=1)
    lines, top = [], 1.0
    for number, (label, found) in enumerate(curves.items()):
        look = style.series(number)
        known = [(at.end, at.speedup) for at in found if at.speedup]
        x, y = [end for end, _ in known], [speedup.value for _, speedup in known]
        lines += panel.plot(x, y, **look, label=style.cut(label, 90), zorder=3)
        for end, speedup in known:
            if speedup.low is not None and speedup.high is not None:
                panel.vlines(end, speedup.low, speedup.high, color=look["color"], linewidth=1, alpha=0.6, zorder=2)
        top = max(top, *y)
    return _heights(figure, panel, lines, 1.35 * top)


@style.styled(style.CARD)
def contexts(curves: Mapping[str, Sequence[AtContext]]) -> Figure:
    """Speedup, tokens per forward and milliseconds per step by the prompt's length: a panel each."""
    panels: list[tuple[str, Callable[[AtContext], float | None]]] = [
        ("speedup", lambda at: at.speedup.value if at.speedup else None),
        ("tokens per forward", lambda at: at.tokens_per_forward),
        ("ms per step", lambda at: 1e3 * at.step_s if at.step_s else None),
    ]
    figure, axes = style.panels(len(panels), width=style.CARD_WIDTH / 72, height=7.0, sharex=True)
    for (title, of), panel in zip(panels, axes[:, 0], strict=True):
        panel.set_title(title, loc="left")
        panel.set_xscale("log", base=2)
        style.plain_ticks(panel, sorted({at.end for found in curves.values() for at in found}))
        for number, (label, found) in enumerate(curves.items()):
            look = style.series(number) | ({"color": style.BASELINE_COLOUR} if label == BASELINE else {})
            known = [(at.prompt_tokens, value) for at in found if (value := of(at)) is not None]
            if known:
                panel.plot(*zip(*known, strict=True), **look, label=style.cut(label, 30))
        panel.set_ylim(bottom=0)
    axes[-1][0].set_xlabel("tokens of the prompt")
    axes[-1][0].legend(loc="best")
    return figure


@style.styled(style.CARD)
def session(curves: Mapping[str, Sequence[float]], window: int) -> Figure:
    """Throughput over a session (method -> tok/s in each window of ``window`` tokens), a line per method."""
    figure, panel = _curves(len(curves), "tokens of the session, up to")
    panel.set_title("tok/s", loc="left")
    lines = []
    for number, (label, found) in enumerate(curves.items()):
        look = style.series(number) | ({"color": style.BASELINE_COLOUR} if label == BASELINE else {})
        at = [window * (place + 1) for place in range(len(found))]
        lines += panel.plot(at, found, markersize=5, **look, label=style.cut(label, 90))
    longest = max(map(len, curves.values()))
    panel.set_xlim(0, window * (longest + 0.5))
    style.plain_ticks(panel, _from_zero(window * longest, 4))
    return _heights(figure, panel, lines, 1.15 * max(map(max, curves.values())))


def _curves(count: int, across: str) -> tuple[Figure, Axes]:
    """A card for ``count`` lines, with space for their names above."""
    above = 18 + 18 * math.ceil(count / 3)  # the legend, and the title below it
    figure, panel = _panel(190 + above, left=40, top=above, bottom=36)
    panel.set_xlabel(across)
    return figure, panel


def _heights(figure: Figure, panel: Axes, lines: Sequence[Any], top: float) -> Figure:
    """Set the card's vertical axis from 0 to ``top``, and write the names of its lines."""
    panel.set_ylim(0, top)
    style.plain_ticks(panel, _from_zero(top, 4), which="y")
    _key(figure, lines)
    return figure


@dataclass(frozen=True)
class Dumbbell:
    """A claimed speedup: as printed, over a bandwidth-bound baseline, and (if known) with both at the bound."""

    label: str
    claimed: float
    over_bound: float
    at_bound: float | None


@style.styled(style.CARD)
def dumbbells(rows: Sequence[Dumbbell]) -> Figure:
    """Claimed speedups and what they are worth over stronger baselines, a line each."""
    figure, panel = _rows(len(rows), 40, above=26, across="times AR")
    at = np.arange(len(rows)) + 0.7
    claimed, over, bound = ([getattr(row, name) for row in rows] for name in ("claimed", "over_bound", "at_bound"))
    panel.set_xlim(0, 1.04 * max(1.0, *claimed, *over, *(each for each in bound if each is not None)))
    style.plain_ticks(panel, _from_zero(panel.get_xlim()[1], 5))
    panel.vlines(np.ones(len(rows)), at - 0.2, at + 0.2, color=style.FAINT, linewidth=1.2, zorder=1)
    panel.hlines(at, over, claimed, color="#9A9A9A", linewidth=2, zorder=2)
    # They differ in shape as well as in colour.
    disc, ring, triangle = style.PALETTE[1], style.PALETTE[0], style.PALETTE[2]
    mark: dict[str, Any] = {"linestyle": "none", "zorder": 3}
    panel.plot(claimed, at, "o", color=disc, label="claimed", **mark)
    panel.plot(over, at, "o", markerfacecolor="white", markeredgewidth=2.6, color=ring, label="over bound AR", **mark)
    panel.plot(np.array(bound, dtype=float), at, "^", color=triangle, label="both at the bound", **mark)
    for place, row in enumerate(rows):
        _heading(panel, place + 0.4, row.label, bold=False)
    _key(figure, panel.lines)
    return figure


@style.styled(style.CARD)
def across(rows: Mapping[str, Mapping[str, Speedup]]) -> Figure:
    """Speedup of each method on each task (method -> task -> speedup): a line per task, with one colour per task."""
    tasks = list(dict.fromkeys(task for speedups in rows.values() for task in speedups))
    each = 22 + 13.0 * len(tasks)
    figure, panel = _rows(len(rows), each, above=12 + 15.0 * math.ceil(len(tasks) / 3), across="times AR, logarithmic")
    every = [speedup for speedups in rows.values() for speedup in speedups.values()]
    ends = [end for speedup in every for end in speedup.interval or (speedup.value, speedup.value)]
    _times_axis(panel, min(0.95, *ends) / 1.04, max(1.05, *ends) * 1.04)
    panel.axvline(1, color=style.FAINT, linewidth=1.2, zorder=1)
    marks = []
    for number, task in enumerate(tasks):
        look = style.series(number)
        marks += panel.plot([], [], linestyle="none", label=task, **look)
        for place, (label, speedups) in enumerate(rows.items()):
            if (found := speedups.get(task)) is None:
                continue
            y = place + (24 + 13.0 * number) / each
            low, high = found.interval or (found.value, found.value)
            panel.hlines(y, low, high, color=look["color"], linewidth=1.6)
            (dot,) = panel.plot(found.value, y, linestyle="none", zorder=3, **look)
            style.tip(dot, f"{label}, {task}: {found.value:.2f} [{low:.2f}, {high:.2f}]")
    for place, label in enumerate(rows):
        _heading(panel, place + 10 / each, label)
    _key(figure, marks)
    return figure


@style.styled(style.CARD)
def scatter(methods: Mapping[str, tuple[float, Accuracy]], metric: str) -> Figure:
    """Speed against accuracy; names are in a column next to the chart, so that they never overlap."""
    height = max(190.0, _LINE * len(methods) + 10)
    figure, panel = _panel(height + 58, left=40, top=22, bottom=36, right=118)
    top = max(max(right.high or 0.0, right.value) for _, right in methods.values())
    panel.set(
        xlim=(0, 1.08 * max(speed for speed, _ in methods.values())), ylim=(0, 1.0 if top > 0.5 else 1.1 * top or 1.0)
    )
    style.plain_ticks(panel, _from_zero(panel.get_xlim()[1], 3))
    rises = _from_zero(panel.get_ylim()[1], 4)
    panel.set_yticks(rises, [f"{100 * rise:g}%" for rise in rises])
    panel.set_xlabel("tok/s")
    panel.set_title(style.cut(metric, 200), loc="left")
    for label, (speed, right) in methods.items():
        colour = style.INK if label == BASELINE else style.PALETTE[0]
        if right.low is not None and right.high is not None:
            panel.vlines(speed, right.low, right.high, color=colour, linewidth=1)
        (dot,) = panel.plot(speed, right.value, "o", color=colour, zorder=3)
        style.tip(dot, f"{label}: {speed:.3g}, {right.value:.3g}")
    places = {label: (speed, height * right.value / panel.get_ylim()[1]) for label, (speed, right) in methods.items()}
    for label, place in _label_heights(places, height):
        speed, right = methods[label]
        panel.annotate(
            style.cut(label, 100), (speed, right.value), (1.06, place / height), va="center",
            xycoords="data", textcoords="axes fraction", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#B5B5B5", "linewidth": 0.8, "relpos": (0, 0.5), "shrinkB": 3},
        )  # fmt: skip
    return figure


def _label_heights(at: Mapping[str, tuple[float, float]], height: float) -> Iterator[tuple[str, float]]:
    """Names from bottom to top with their heights in the column: near the point's height, at least a line apart."""
    # Order of names for points at the same height, so that the lines to the names do not cross.
    names = sorted(at, key=lambda name: (at[name][1], at[name][0] if at[name][1] > height / 2 else -at[name][0]))
    steps = _LINE * np.arange(len(names))
    places = np.maximum.accumulate(np.array([at[name][1] for name in names]) - steps)
    # Keep all names between the first and the last line.
    yield from zip(names, np.clip(places, 4, height - 4 - steps[-1]) + steps, strict=True)


def _panel(
    height: float, *, left: float = _EDGE, right: float = _EDGE, top: float, bottom: float
) -> tuple[Figure, Axes]:
    """A card with one panel and margins."""
    figure, ((panel,),) = style.panels(width=style.CARD_WIDTH / 72, height=height / 72, layout=None)
    figure.subplots_adjust(left / style.CARD_WIDTH, bottom / height, 1 - right / style.CARD_WIDTH, 1 - top / height)
    return figure, panel


def _rows(count: int, each: float, *, above: float, across: str) -> tuple[Figure, Axes]:
    """A card with one line per row, the first at the top."""
    figure, panel = _panel(above + each * count + 34, top=above, bottom=34)
    panel.set(ylim=(count, 0), yticks=[], xlabel=across)
    return figure, panel


def _heading(panel: Axes, y: float, label: str, words: str = "", bold: bool = True) -> None:
    """Write a row's name (left) and figures (right) above its bars."""
    where: dict[str, Any] = {"transform": panel.get_yaxis_transform(), "bbox": {"color": "white", "pad": 0.5}}
    room = _INNER - style.width_of(f"{words}  " if words else "")
    size, weight = ("medium", "bold") if bold else (style.CARD["axes.labelsize"], "normal")
    panel.text(0, y, style.cut(label, room, bold), size=size, weight=weight, **where)
    panel.text(1, y, words, ha="right", **where)


def _key(figure: Figure, marks: Sequence[Any]) -> None:
    figure.legend(handles=marks, loc="upper left", ncols=3, bbox_to_anchor=(0, 1))


def _from_zero(most: float, count: int) -> list[float]:
    """About ``count`` ticks from 0 to at most ``most``, in steps of 1, 2 or 5 times a power of ten."""
    return [float(tick) for tick in MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(0, most) if tick <= most]


def _times_axis(panel: Axes, low: float, high: float) -> None:
    """Make a logarithmic axis of ratios with plain numbers, always including 1."""
    panel.set(xscale="log", xlim=(low, high))
    if high / low < 3:
        locator: Locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    else:
        locator = LogLocator(subs=(1.0, 2.0, 3.0, 5.0) if high / low < 100 else (1.0,), numticks=30)
    edge = (high / low) ** 0.05  # closer to the end, a long number would be cut off
    ticks = [tick for tick in locator.tick_values(low, high) if low * edge <= tick <= high / edge]
    style.plain_ticks(panel, [1.0, *ticks])
