"""Speed over two options of a sweep: tokens per forward and tok/s, side by side.

Like figure 7a of Jacobi Forcing's blog post, but without a fitted surface: axes are logarithmic if the options' values
are, only the area between measured configurations is coloured, and the best configuration is shown with its interval
and with those that cannot be distinguished from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from specbench.report.charts import style
from specbench.report.charts.labels import place
from specbench.report.charts.sweep_cells import (
    HALVED,
    Floats,
    bars,
    check,
    disturbances,
    flags,
    floats,
    methods,
    options,
    shown,
    values_of,
)
from specbench.results import BASELINE

Scale = Literal["log", "linear"]

MEASURED, SMALL, MISSING = "measured", "stopped early, on fewer prompts", "not measured"
BEST, ALIKE = "best tok/s", "within noise of the best"
BEST_METHOD, PLAIN = "best tok/s of the method, slower than AR", "AR's tok/s"

_QUANTITIES = (("tokens_per_forward", "tokens per forward"), ("decode_tok_s", "tok/s"))
_STEPS = 16  # of the interpolation, between neighbouring configurations
_LEVELS = 12
_MARGIN = 0.08  # of an axis, beyond its outermost values


def axis_scale(values: npt.ArrayLike) -> Scale:
    """The scale on which an option's values are spaced more evenly: "log" for 8, 16, 32, "linear" for 0.5, 0.55, 0.6.

    Linear if a value is not positive, or if the largest is less than twice the smallest.
    """
    at = np.unique(np.asarray(values, dtype=np.float64))
    if len(at) < 2 or at[0] <= 0 or at[-1] < 2 * at[0]:
        return "linear"
    gaps, ratios = np.diff(at), np.diff(np.log2(at))
    # Two values are equally even on both scales.
    return "log" if ratios.max() / ratios.min() <= gaps.max() / gaps.min() else "linear"


def interpolate(
    xs: Sequence[float] | Floats, ys: Sequence[float] | Floats, values: npt.ArrayLike, steps: int = _STEPS
) -> tuple[Floats, Floats, Floats]:
    """Interpolate bilinearly, on the scales of the axes, in the rectangles of a grid that have all four corners.

    ``values`` is [len(ys), len(xs)], nan for missing configurations. Returns x [k], y [m] and values [m, k] of a grid
    with ``steps`` steps between neighbours; nan inside a rectangle with a missing corner.
    """
    corners = np.asarray(values, dtype=np.float64)
    fine = np.full(((len(ys) - 1) * steps + 1, (len(xs) - 1) * steps + 1), np.nan)
    along = np.linspace(0.0, 1.0, steps + 1)
    for row, column in product(range(len(ys) - 1), range(len(xs) - 1)):
        rectangle = corners[row : row + 2, column : column + 2]
        if np.isfinite(rectangle).all():
            left, right = (lower + (upper - lower) * along[:, None] for lower, upper in rectangle.T)
            top, first = row * steps, column * steps
            fine[top : top + steps + 1, first : first + steps + 1] = left + (right - left) * along
    return _finer(xs, steps), _finer(ys, steps), fine


def _finer(values: Sequence[float] | Floats, steps: int) -> Floats:
    log = axis_scale(values) == "log"
    at = np.asarray(values, dtype=np.float64)
    places = np.linspace(0, len(at) - 1, (len(at) - 1) * steps + 1)
    found = np.interp(places, np.arange(len(at)), np.log2(at) if log else at)
    return np.exp2(found) if log else found


@style.styled()
def contour(
    cells: pd.DataFrame,
    x: str,
    y: str | None = None,
    *,
    facet: str | None = None,
    grid: pd.DataFrame | None = None,
    caption: str = "",
) -> Figure:
    """Tokens per forward (left) and tok/s (right) of one method at one concurrency, over one or two of its options.

    If the configurations are not a grid of at least two by two, lines with error bars replace the surface.

    Args:
        cells: the table of :mod:`specbench.report.charts.sweep_cells`. AR's speed is a dashed line, as far as it is on
            the scale; rows without an axis value are left out.
        x, y: numeric options. Without ``y`` it is a line over ``x``.
        facet: an option; each of its values has a row of panels, on a common colour scale.
        grid: configurations whose ``x`` and ``y`` make up the grid; unmeasured ones are marked. Default: ``cells``.
    """
    check(cells)
    places = [option for option in (x, y, facet) if option is not None]
    mine = cells[(cells["method"] != BASELINE) & cells[places].notna().all(axis=1)]
    if len(methods(mine)) != 1 or mine["concurrency"].nunique() != 1:
        raise ValueError("cannot draw a contour: it needs exactly one method and one concurrency")
    if mine.duplicated(places).any():
        raise ValueError(f"several configurations have the same {', '.join(places)}")
    if not np.isfinite(floats(mine, "decode_tok_s")).any():
        raise ValueError("no configuration is measured")
    plain = _baseline_speed(cells, mine)
    around = mine if grid is None else grid
    plane = _Plane(x, _values(around, x), y, _values(around, y))
    slices = [("", mine)]
    if facet is not None:
        slices = [(f"{facet} {shown(value)}: ", mine[mine[facet] == value]) for value in values_of(mine, facet)]
    height = style.HEIGHT + 0.6 if len(slices) == 1 else 3.1 * len(slices) + 1.2
    figure, axes = style.panels(len(slices), 2, height=height, sharex="all", sharey="all" if plane.flat else "col")
    for column, (quantity, name) in enumerate(_QUANTITIES):
        levels = np.asarray(MaxNLocator(_LEVELS).tick_values(*_range(floats(mine, quantity))))
        norm = Normalize(levels[0], levels[-1])
        for row, (prefix, part) in enumerate(slices):
            panel = axes[row, column]
            panel.set_title(f"{prefix}{name}", loc="left")
            if plane.flat:
                _surface(panel, part, plane, quantity, levels, norm, plain)
            else:
                _line(panel, part, plane, quantity, plain)
            if row == len(slices) - 1:
                panel.set_xlabel(plane.across)
            if column == 0 or not plane.flat:
                panel.set_ylabel(plane.up if plane.flat else name)
        if plane.flat:
            figure.colorbar(
                ScalarMappable(norm, style.COLOUR_MAP), ax=list(axes[:, column]), pad=0.02, aspect=30 * len(slices)
            )
    style.titled(figure, _title(mine, x, y, facet, caption), "\n\n" + _note(mine, plane, plain))
    for row, (_, part) in enumerate(slices):  # after all that moves the panels
        for column, (quantity, _) in enumerate(_QUANTITIES):
            _best(axes[row, column], part, plane, quantity, plain)
    _legend(figure)
    return figure


@dataclass(frozen=True)
class _Plane:
    """The options on a chart's axes, with the values of the grid."""

    x: str
    xs: Floats
    y: str | None
    ys: Floats

    @property
    def flat(self) -> bool:
        """Whether both axes vary; otherwise a line is drawn."""
        return len(self.xs) > 1 and len(self.ys) > 1

    @property
    def across(self) -> str:
        """The option on the horizontal axis; for a line, the one that varies."""
        return self.y if self.y and len(self.ys) > 1 and len(self.xs) == 1 else self.x

    @property
    def up(self) -> str:
        return self.y or ""

    @property
    def along(self) -> Floats:
        """Values on the horizontal axis."""
        return self.xs if self.across == self.x else self.ys


def _values(cells: pd.DataFrame, option: str | None) -> Floats:
    if option is None:
        return np.zeros(1)
    found = np.unique(floats(cells[cells["method"] != BASELINE], option))
    return found[np.isfinite(found)]


def _range(values: Floats) -> tuple[float, float]:
    """Smallest and largest known value, widened if they are equal or missing."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, high) if high > low else (low - 0.05 * abs(low) - 1e-3, high + 0.05 * abs(high) + 1e-3)


def _baseline_speed(cells: pd.DataFrame, mine: pd.DataFrame) -> float:
    """AR's tok/s at the chart's concurrency; nan if it is not in the table."""
    at = cells[(cells["method"] == BASELINE) & (cells["concurrency"] == mine["concurrency"].iloc[0])]
    return float(floats(at, "decode_tok_s")[0]) if len(at) else float("nan")


def _surface(
    panel: Axes, cells: pd.DataFrame, plane: _Plane, quantity: str, levels: Floats, norm: Normalize, plain: float
) -> None:
    """Draw configurations as coloured points, with interpolated colour between them."""
    measured = cells[np.isfinite(floats(cells, quantity))]
    x, y, z = floats(measured, plane.x), floats(measured, plane.up), floats(measured, quantity)
    values = np.full((len(plane.ys), len(plane.xs)), np.nan)
    values[np.searchsorted(plane.ys, y), np.searchsorted(plane.xs, x)] = z
    _axis(panel, "x", plane.xs)
    _axis(panel, "y", plane.ys)
    panel.grid(False)
    fine_x, fine_y, fine = interpolate(plane.xs, plane.ys, values)
    if np.isfinite(fine).any():
        # corner_mask would colour part of a hole in the grid.
        masked = np.ma.masked_invalid(fine)
        panel.contourf(fine_x, fine_y, masked, levels, norm=norm, cmap=style.COLOUR_MAP, corner_mask=False)
        panel.contour(fine_x, fine_y, masked, levels, colors="white", linewidths=0.4, alpha=0.6, corner_mask=False)
        if quantity == "decode_tok_s" and np.nanmin(fine) < plain < np.nanmax(fine):
            dashed: dict[str, Any] = {"colors": style.INK, "linestyles": "--", "linewidths": 1.4, "corner_mask": False}
            panel.contour(fine_x, fine_y, masked, [plain], **dashed)
            panel.plot([], [], color=style.INK, linestyle="--", linewidth=1.4, label=PLAIN)
    small = _halved(measured)
    drawn: dict[str, Any] = {"norm": norm, "cmap": style.COLOUR_MAP, "edgecolors": "white", "zorder": 3}
    for which, size, label in ((~small, 46, MEASURED), (small, 16, SMALL)):
        if which.any():
            panel.scatter(x[which], y[which], s=size, c=z[which], linewidths=1.0, label=label, **drawn)
    rows, columns = np.nonzero(np.isnan(values))
    if len(rows):
        _crosses(panel, plane.xs[columns], plane.ys[rows])
    alike = flags(measured, "within_noise") & ~flags(measured, "best")
    if alike.any():
        _rings(panel, x[alike], y[alike])


def _line(panel: Axes, cells: pd.DataFrame, plane: _Plane, quantity: str, plain: float) -> None:
    """Draw configurations as points with intervals, joined if their neighbours are measured."""
    _axis(panel, "x", plane.along)
    place = np.searchsorted(plane.along, floats(cells, plane.across))
    values = np.full(len(plane.along), np.nan)
    values[place] = floats(cells, quantity)
    panel.plot(plane.along, values, color=style.PALETTE[0], zorder=2)
    if quantity == "decode_tok_s" and np.isfinite(plain):
        panel.axhline(plain, color=style.INK, linestyle="--", linewidth=1.4, zorder=1, label=PLAIN)
    measured = cells[np.isfinite(floats(cells, quantity))]
    x, z = floats(measured, plane.across), floats(measured, quantity)
    if f"{quantity}_low" in measured:
        panel.errorbar(x, z, bars(measured, quantity), fmt="none", ecolor=style.PALETTE[0], zorder=2)
    small = _halved(measured)
    for which, size, label in ((~small, 34, MEASURED), (small, 12, SMALL)):
        if which.any():
            panel.scatter(x[which], z[which], s=size, color=style.PALETTE[0], zorder=3, label=label)
    if np.isnan(values).any():
        missing = plane.along[np.isnan(values)]
        _crosses(panel, missing, np.full(len(missing), 0.04), transform=panel.get_xaxis_transform())
    alike = flags(measured, "within_noise") & ~flags(measured, "best")
    if alike.any():
        _rings(panel, x[alike], z[alike])


def _halved(cells: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return np.asarray(cells["stopped"].eq(HALVED), dtype=np.bool_)


def _crosses(panel: Axes, x: Floats, y: Floats, **where: Any) -> None:
    panel.scatter(x, y, s=30, marker="x", color=style.FAINT, linewidths=1.1, zorder=3, label=MISSING, **where)


def _rings(panel: Axes, x: Floats, y: Floats) -> None:
    """Draw rings in a colour outside the colour map, with a contrasting rim."""
    panel.scatter(
        x, y, s=130, facecolors="none", edgecolors=style.PALETTE[1], linewidths=1.8, zorder=4, label=ALIKE,
        path_effects=[withStroke(linewidth=3.6, foreground="white")],
    )  # fmt: skip


def _best(panel: Axes, cells: pd.DataFrame, plane: _Plane, quantity: str, plain: float) -> None:
    """Draw a star at the best configuration, with its value and interval as text.

    On a surface, the text is on the side with more space; on a line, it avoids the line.
    """
    measured = cells[np.isfinite(floats(cells, quantity))]
    up = plane.up if plane.flat else quantity
    for row in measured[flags(measured, "best")].to_dict("records"):
        at, label = (row[plane.across], row[up]), BEST_METHOD if row["speedup"] <= 1 else BEST
        panel.scatter([at[0]], [at[1]], s=230, marker="*", color="white", edgecolors=style.INK, zorder=6, label=label)
        text = f"{row[quantity]:.2f} TPF"
        if quantity == "decode_tok_s":
            text = f"{row['decode_tok_s']:.1f} tok/s"
            if np.isfinite(row["decode_tok_s_low"]):
                text += f"\n[{row['decode_tok_s_low']:.1f}, {row['decode_tok_s_high']:.1f}]"
        if not plane.flat:
            points = np.stack([floats(measured, plane.across), floats(measured, up)], axis=1)
            place(panel, [at], [text], avoid=points, lines=[points[np.argsort(points[:, 0])]])
            continue
        right, top = panel.transAxes.inverted().transform(panel.transData.transform(at)) > 0.5
        panel.annotate(
            text, at, (-11 if right else 11, -11 if top else 11), textcoords="offset points",
            ha="right" if right else "left", va="top" if top else "bottom", fontsize=style.SMALL_SIZE,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": style.FAINT, "alpha": 0.92},
            zorder=7,
        )  # fmt: skip


def _axis(panel: Axes, which: Literal["x", "y"], values: Floats) -> None:
    """Set scale, ticks and limits of an axis over an option's values."""
    log = axis_scale(values) == "log"
    ends = np.log2(values[[0, -1]]) if log else values[[0, -1]]
    beyond = _MARGIN * (ends[1] - ends[0]) or 0.5
    around = ends + np.array([-beyond, beyond])
    low, high = np.exp2(around) if log else around
    scale: dict[str, Any] = {"value": "log", "base": 2} if log else {"value": "linear"}
    (panel.set_xscale if which == "x" else panel.set_yscale)(**scale)
    style.plain_ticks(panel, values, which=which)
    (panel.set_xlim if which == "x" else panel.set_ylim)(low, high)


def _legend(figure: Figure) -> None:
    """One legend for all panels, placed on the empty lines above the note.

    Placed by hand, because the layout would draw legend and note over each other.
    """
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    order = [label for label in (MEASURED, SMALL, MISSING, PLAIN, BEST, BEST_METHOD, ALIKE) if label in entries]
    lines = len(figure.get_supxlabel().strip().splitlines())
    above_note = (1.3 * lines * style.SMALL_SIZE / 72) / figure.get_figheight()
    legend = figure.legend(
        [entries[label] for label in order], order, loc="lower left", bbox_to_anchor=(0.0, above_note), ncols=len(order)
    )
    legend.set_in_layout(False)


def _title(cells: pd.DataFrame, x: str, y: str | None, facet: str | None, caption: str) -> str:
    """The axes, the fixed options, and the caption on the next line."""
    held = [option for option in options(cells) if option not in (x, y, facet)]
    fixed = [f"{option} {shown(cells[option].dropna().iloc[0])}" for option in held]
    where = [*fixed, f"concurrency {shown(cells['concurrency'].iloc[0])}"]
    return f"{methods(cells)[0]} over {x}{f' and {y}' if y else ''} · {' · '.join(where)}\n{caption}"


def _note(cells: pd.DataFrame, plane: _Plane, plain: float) -> str:
    """Sentences that qualify the chart."""
    measured = cells[np.isfinite(floats(cells, "decode_tok_s"))]
    half = (
        (floats(measured, "decode_tok_s_high") - floats(measured, "decode_tok_s_low"))
        / 2
        / floats(measured, "decode_tok_s")
    )
    known = half[np.isfinite(half)]
    lines = ["No configuration has an interval."]
    if len(known):
        lines = [f"95% intervals of tok/s: median ±{np.median(known):.1%}, widest ±{known.max():.1%}"]
        lines[0] += (
            "." if len(known) == len(half) else f"; {len(half) - len(known)} of {len(half)} configurations have none."
        )
    fewest, most = floats(measured, "prompts").min(), floats(measured, "prompts").max()
    if np.isfinite(plain):
        best = measured[flags(measured, "best")]
        wins = len(best) > 0 and float(best["speedup"].iloc[0]) <= 1
        line = f"Plain decoding (AR): {plain:.1f} tok/s"
        lines.append(
            f"{line}, the fastest; the best configuration is {best['speedup'].iloc[0]:.2f} of it."
            if wins
            else f"{line}."
        )
    lines += [f"Disturbed: {why}; what is best is unsure." for why in disturbances(cells)]
    lines.append(f"Prompts per configuration: {fewest:g}" + ("." if fewest == most else f" to {most:g}."))
    if plane.flat:
        lines.append("Colour is interpolated only between four measured configurations.")
    if not flags(cells, "best").any():
        lines.append("The best configuration of this concurrency is not shown here.")
    return " ".join(lines)
