"""Charts of a profile: the roofline with the measured steps, and step time over rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from specbench.hardware import Ceilings, ModelShape, Profile, bound_s, knee, step_cost, step_rows
from specbench.report.charts import style

ROOFLINE, STEPS = "roofline.png", "steps.png"

_LABELLED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # of many row counts those that leave their labels room

_LEGEND: dict[str, Any] = {"frameon": True, "framealpha": 0.9, "edgecolor": "none"}  # lines pass beneath its text


def write_profile_charts(profile: Profile, folder: Path) -> None:
    """Write ``roofline.png`` and ``steps.png``."""
    with style.styled():
        style.save(roofline(profile), folder / ROOFLINE)
        style.save(steps(profile), folder / STEPS)


def roofline(profile: Profile) -> Figure:
    """Achieved FLOP/s over arithmetic intensity: the steps at the base context under the ceilings."""
    figure, axes = style.panels(width=style.WIDTH, height=1.4 * style.HEIGHT)
    plot: Axes = axes[0, 0]
    plot.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOPs per byte", ylabel="FLOP/s")
    shown = [row for row in step_rows(profile) if row["slots"] == 1]
    steps_at = {context: [r for r in shown if r["context_tokens"] == context] for context in _shown_contexts(profile)}
    several = [r for r in step_rows(profile) if r["slots"] > 1 and r["rows"] == 1]
    drawn = [*(row for rows in steps_at.values() for row in rows), *several]
    intensities = [row["intensity_flop_per_byte"] for row in drawn]
    ridges = [c.intensity for c in (profile.ceilings, profile.datasheet) if c]
    low, high = min(*intensities, *ridges) / 2, max(*intensities, *ridges) * 3
    if profile.datasheet:
        _ceiling(plot, profile.datasheet, low, high, f"datasheet of {profile.gpu}", faint=True)
    _ceiling(plot, profile.ceilings, low, high, "measured ceilings")
    for context, rows in steps_at.items():
        base = context == profile.base_context
        x = [row["intensity_flop_per_byte"] for row in rows]
        y = [1e9 * row["achieved_gflop_s"] for row in rows]
        name = f"rows of one sequence, {context} cached tokens"
        plot.plot(
            x,
            y,
            **style.series(profile.contexts.index(context)),
            label=name,
            zorder=4 if base else 3,
            alpha=1 if base else 0.6,
        )
        if base:
            _label_rows(plot, rows, x, y)
    if several:
        counts = [int(row["slots"]) for row in several]
        plot.plot(
            [row["intensity_flop_per_byte"] for row in several],
            [1e9 * row["achieved_gflop_s"] for row in several],
            linestyle="none", marker="s", markerfacecolor="white", color=style.BASELINE_COLOUR,
            label=f"one row of each of {counts[0]} … {counts[-1]} sequences" if len(counts) > 1 else
            f"one row of each of {counts[0]} sequences",
        )  # fmt: skip
    _mark_knee(plot, profile)
    plot.set_xlim(low, high)
    _log_ticks(plot.xaxis, lambda value, _: f"{value:g}")
    _log_ticks(plot.yaxis, lambda value, _: _si(value))
    plot.legend(loc="lower right", **_LEGEND)
    style.titled(figure, f"Roofline of a decoding step: {_what(profile)}", _NOTE)
    return figure


def draw_datasheet(
    shape: ModelShape, ceilings: Ceilings, contexts: Sequence[int], what: str, gpu: str, path: Path
) -> Path:
    """Write the chart of :func:`datasheet_roofline`."""
    return style.save(datasheet_roofline(shape, ceilings, contexts, what, gpu), path)


@style.styled()
def datasheet_roofline(shape: ModelShape, ceilings: Ceilings, contexts: Sequence[int], what: str, gpu: str) -> Figure:
    """The roofline of a GPU that is not here, with the most that a step of some rows could reach on it."""
    figure, ((plot, times),) = style.panels(1, 2, width=1.3 * style.WIDTH, height=1.3 * style.HEIGHT)
    plot.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOPs per byte", ylabel="FLOP/s, at most")
    times.set(xscale="log", yscale="log", xlabel="rows of the step", ylabel="milliseconds, at least")
    ends: list[float] = [ceilings.intensity]
    for at, context in enumerate(contexts):
        costs = [step_cost(shape, rows, context) for rows in _LABELLED]
        x, seconds = [cost.intensity for cost in costs], [bound_s(cost, ceilings) for cost in costs]
        y = [cost.flops / least for cost, least in zip(costs, seconds, strict=True)]
        look = {**style.series(at), "markerfacecolor": "white"}
        plot.plot(x, y, linestyle="none", label=f"bound of a step after {context} cached tokens", zorder=4, **look)
        every = range(1, _LABELLED[-1] + 1)
        least = [1e3 * bound_s(step_cost(shape, rows, context), ceilings) for rows in every]
        times.plot(every, least, linestyle="--", color=look["color"], label=f"{context} cached tokens")
        times.plot(_LABELLED, [1e3 * each for each in seconds], linestyle="none", **look)
        ends += x
        if not at:
            _label_rows(plot, [{"rows": rows} for rows in _LABELLED], x, y)
            rows = knee(shape, ceilings, context).rows
            if rows:
                label = f"knee after {context} cached tokens: {rows} rows"
                times.axvline(rows, color=style.INK, linewidth=0.8, linestyle=":", label=label)
    _ceiling(plot, ceilings, min(ends) / 2, max(ends) * 3, f"datasheet of {gpu}")
    plot.set_xlim(min(ends) / 2, max(ends) * 3)
    style.plain_ticks(times, _LABELLED)
    _log_ticks(plot.xaxis, lambda value, _: f"{value:g}")
    _log_ticks(plot.yaxis, lambda value, _: _si(value))
    _log_ticks(times.yaxis, lambda value, _: f"{value:g}")
    plot.legend(loc="lower right", **_LEGEND)
    times.legend(loc="upper left", **_LEGEND)
    style.titled(figure, f"Roofline of a decoding step: {what}, {gpu} · DATASHEET, NOT MEASURED", _UNMEASURED)
    return figure


_UNMEASURED = (
    "Nothing was run. Lines: the vendor's peaks. Open marks: the most that any engine could reach, counting weights, "
    "KV cache and matrix products, each byte once. Measured steps take longer: specbench profile on that GPU."
)


def steps(profile: Profile) -> Figure:
    """Step time over rows: a line per context, the bound below it, and the nearly free rows."""
    figure, axes = style.panels(width=style.WIDTH, height=1.4 * style.HEIGHT)
    plot: Axes = axes[0, 0]
    plot.set(xscale="log", yscale="log", xlabel="rows of the step", ylabel="milliseconds")
    every = sorted({point.rows for point in profile.points if point.slots == 1})
    contexts = profile.contexts
    for at, context in enumerate(contexts):
        curve = profile.curve(context)
        look = style.series(at)
        rows, points = list(curve), list(curve.values())
        plot.plot(rows, [1e3 * point.seconds for point in points], label=f"{context} cached tokens", **look)
        plot.fill_between(
            rows, [1e3 * p.low_s for p in points], [1e3 * p.high_s for p in points],
            color=look["color"], alpha=0.2, linewidth=0,
        )  # fmt: skip
        each = range(1, every[-1] + 1)  # the bound is known for every row count
        least = [1e3 * bound_s(step_cost(profile.shape, count, context), profile.ceilings) for count in each]
        plot.plot(each, least, color=look["color"], linestyle="--", linewidth=1.0, alpha=0.8)
    plot.plot([], [], color=style.FAINT, linestyle="--", linewidth=1.0, label="bound by the measured ceilings")
    for free in profile.free_rows:
        if free.context == profile.base_context:
            one = 1e3 * profile.curve(free.context)[1].seconds
            colour = style.series(contexts.index(free.context))["color"]
            label = f"free: {free.rows} {'row' if free.rows == 1 else 'rows'} within {free.tolerance:.0%} of one, "
            label += f"{free.context} cached tokens"
            plot.fill_between([1, free.rows], one, one * (1 + free.tolerance), color=colour, alpha=0.35, linewidth=0)
            plot.axvline(free.rows, color=colour, linewidth=1.0, linestyle=":", label=label)
    style.plain_ticks(plot, [count for count in every if count in _LABELLED] or every)
    _log_ticks(plot.yaxis, lambda value, _: f"{value:g}")
    plot.legend(loc="upper left", **_LEGEND)
    style.titled(figure, f"Step time over rows: {_what(profile)}", f"Medians; bands are quartiles. {_NOTE}")
    return figure


_NOTE = (
    "Costs count weights, KV cache and matrix products, each byte once, without activations. Contexts are simulated: "
    "the cache holds noise."
)


def _what(profile: Profile) -> str:
    device = profile.environment["device"]
    name = device["name"] if device["kind"] != "cpu" else f"CPU, {profile.environment['cpu']['torch_threads']} threads"
    return f"{profile.model.name}{' (dummy weights)' if profile.model.dummy else ''}, {profile.model.dtype}, {name}"


def _shown_contexts(profile: Profile) -> list[int]:
    """The base context and the longest one; the lines of the others lie between them."""
    found = [profile.base_context, profile.contexts[-1]]
    return list(dict.fromkeys(found))


def _ceiling(plot: Axes, ceilings: Ceilings, low: float, high: float, label: str, faint: bool = False) -> None:
    ridge = ceilings.intensity
    colour = style.FAINT if faint else style.INK
    plot.plot(
        [low, ridge, high],
        [low * ceilings.bytes_per_s, ceilings.flops_per_s, ceilings.flops_per_s],
        color=colour,
        alpha=0.5 if faint else 1.0,
        linestyle="--" if faint else "-",
        linewidth=1.0 if faint else 2.0,
        label=f"{label}: {_si(ceilings.bytes_per_s)}B/s, {_si(ceilings.flops_per_s)}FLOP/s",
    )


def _mark_knee(plot: Axes, profile: Profile) -> None:
    knee = profile.knee
    reach = f"{knee.rows} rows" if knee.rows else "out of reach"
    plot.axvline(knee.intensity, color=style.INK, linewidth=0.8, linestyle=":")
    plot.annotate(
        f"knee: {knee.intensity:.3g} FLOPs per byte, {reach}",
        (knee.intensity, profile.ceilings.flops_per_s),
        xytext=(-6, 6),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )


def _label_rows(plot: Axes, rows: list[dict[str, float]], x: list[float], y: list[float]) -> None:
    known = [row["rows"] for row in rows]
    wanted = [count for count in known if count in _LABELLED] or known
    for row, at, height in zip(rows, x, y, strict=True):
        if row["rows"] in wanted:
            text = f"{row['rows']:g}" + (" row" if row["rows"] == 1 else "")
            plot.annotate(
                text, (at, height), xytext=(5, -4), textcoords="offset points", va="top", fontsize=style.SMALL_SIZE
            )


def _log_ticks(axis: Axis, text: Callable[[float, int], str]) -> None:
    """Label 1, 2 and 5 of every decade."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=30))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def _si(value: float) -> str:
    """Format with a space and an SI prefix, as "1.2 T"."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
