"""Speed against what the training took: which training is the cheapest for its speedup (Jacobi Forcing, Fig. 2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specbench.report.charts import style
from specbench.report.charts.labels import place
from specbench.report.charts.pareto import accuracy_bars, front
from specbench.report.charts.sweep_cells import bars, floats
from specbench.results import BASELINE

#: Quantity on the horizontal axis: the first that all trainings have, with its unit.
_AXES = (("flops", "floating-point operations of the training"), ("tokens_seen", "tokens of the training"))


def save_training_cost(cells: pd.DataFrame, folder: Path, caption: str = "") -> Path | None:
    """Write the charts into a folder; None if fewer than two trainings were measured."""
    if cells.empty or _drawn(cells)["training"].nunique() < 2:
        return None
    if np.isfinite(floats(_drawn(cells), "accuracy")).any():
        style.save(training_pareto(cells, caption=caption), folder / "training-pareto.png")
    return style.save(training_cost(cells, caption=caption), folder / "training-cost.png")


@style.styled()
def training_cost(cells: pd.DataFrame, *, caption: str = "") -> Figure:
    """Speedup over plain decoding of the same weights, against the cost of the training; 0 is the untrained model.

    The lowest concurrency of :class:`specbench.sweeps.trained.ReadTrainings` is drawn.
    """
    drawn = _drawn(cells)
    if drawn.empty:
        raise ValueError("no configuration has both a speedup and a cost")
    column, axis_label = next(axis for axis in _AXES if np.isfinite(floats(drawn, axis[0])).all())
    cost, speed = floats(drawn, column), floats(drawn, "speedup")
    figure, ((panel,),) = style.panels(height=5.2)
    # A colour for each training and a marker for each configuration: two trainings may cost the same.
    trainings, labels = drawn["training"].unique().tolist(), drawn["label"].unique().tolist()
    for at in range(len(drawn)):
        training, label = drawn["training"].iloc[at], drawn["label"].iloc[at]
        colour = style.series(trainings.index(training))["color"]
        marker = style.series(labels.index(label))["marker"]
        high = bars(drawn, "speedup")[:, [at]]
        panel.errorbar(cost[[at]], speed[[at]], high, fmt="none", ecolor=colour, alpha=0.4, elinewidth=0.9)
        panel.scatter(
            cost[at], speed[at], s=42, color=colour, marker=marker, edgecolors="white", linewidths=0.7, zorder=3
        )
    for index, training in enumerate(trainings):
        panel.plot([], [], color=style.series(index)["color"], linewidth=5, label=str(training))
    for index, label in enumerate(labels):
        panel.scatter([], [], s=42, color=style.INK, marker=style.series(index)["marker"], label=str(label))
    ahead = np.flatnonzero(front(speed, -cost))
    ahead = ahead[np.argsort(cost[ahead], kind="stable")]
    steps = np.stack([np.repeat(cost[ahead], 2)[1:], np.repeat(speed[ahead], 2)[:-1]], axis=1)
    panel.plot(*steps.T, color=style.INK, linewidth=1.1, zorder=2, label="cheapest for its speedup")
    panel.axhline(
        1.0, color=style.BASELINE_COLOUR, linewidth=0.9, linestyle=":", label=f"{BASELINE} of the same weights"
    )
    panel.set_xlabel(axis_label)
    panel.set_ylabel("speedup")
    panel.margins(0.08)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    style.titled(
        figure, f"Speedup and cost of training\n{caption}", "Bars: 95% intervals of the speedup, over prompts."
    )
    points_named = [(float(cost[at]), float(speed[at])) for at in ahead]
    names = [str(drawn["training"].iloc[at]) for at in ahead]
    place(panel, points_named, names, avoid=np.stack([cost, speed], axis=1), lines=[steps] if len(steps) else [])
    return figure


@style.styled()
def training_pareto(cells: pd.DataFrame, *, caption: str = "") -> Figure:
    """Right answers over tok/s, the area of a mark as the root of its training's tokens (Jacobi Forcing, Fig. 2)."""
    drawn = _drawn(cells)
    drawn = drawn[np.isfinite(floats(drawn, "accuracy")) & np.isfinite(floats(drawn, "decode_tok_s"))]
    if drawn.empty:
        raise ValueError("no configuration has speed, accuracy and a cost")
    plain = cells[(cells["set"] == "tuning") & (cells["method"] == BASELINE) & (cells["tokens_seen"] == 0)]
    figure, ((panel,),) = style.panels(height=5.2)
    speed, right, cost = (floats(drawn, column) for column in ("decode_tok_s", "accuracy", "tokens_seen"))
    area = _LEAST_AREA + _MOST_AREA * np.sqrt(cost / max(float(cost.max()), 1.0))
    trainings = drawn["training"].unique().tolist()
    for at in np.argsort(-area):
        colour = style.series(trainings.index(drawn["training"].iloc[at]))["color"]
        wide, high = bars(drawn, "decode_tok_s")[:, [at]], accuracy_bars(drawn)[:, [at]]
        panel.errorbar(speed[at], right[at], high, wide, fmt="none", ecolor=colour, alpha=0.4, elinewidth=0.9)
        panel.scatter(speed[at], right[at], s=area[at], color=colour, alpha=0.75, edgecolors="white", zorder=3)
    for index, training in enumerate(trainings):
        tokens = float(cost[drawn["training"].eq(training)].max())
        label = f"{training}: {tokens:,.0f} training tokens"
        panel.plot([], [], color=style.series(index)["color"], linewidth=5, label=label)
    panel.scatter(
        floats(plain, "decode_tok_s"), floats(plain, "accuracy"), s=42, color=style.BASELINE_COLOUR, marker="D",
        label=f"{BASELINE} of the untrained model", zorder=4,
    )  # fmt: skip
    panel.set(xlabel="tok/s", ylabel="right answers")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.margins(0.12)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    note = "Bars: 95% intervals. The area of a mark grows with the square root of the tokens that its training saw."
    style.titled(figure, f"Speed, right answers and cost of training\n{caption}", note)
    names = [str(label) for label in drawn["label"]]
    place(panel, list(zip(speed.tolist(), right.tolist(), strict=True)), names, avoid=np.stack([speed, right], axis=1))
    return figure


_LEAST_AREA, _MOST_AREA = 30.0, 420.0


def _drawn(cells: pd.DataFrame) -> pd.DataFrame:
    """Configurations on the tuning prompts, at the lowest concurrency, with a speedup and a cost."""
    if cells.empty:
        raise ValueError("no configuration has both a speedup and a cost")
    mine = cells[(cells["set"] == "tuning") & (cells["method"] != BASELINE)]
    mine = mine[mine["concurrency"] == mine["concurrency"].min()]
    return mine[np.isfinite(floats(mine, "speedup")) & np.isfinite(floats(mine, "tokens_seen"))]
