"""Speed against accuracy: the configurations that are fastest for their accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specbench.analysis import proportion_interval
from specbench.report.charts import style
from specbench.report.charts.labels import place
from specbench.report.charts.sweep_cells import HALVED, Flags, Floats, bars, check, flags, floats, methods, shown
from specbench.results import BASELINE

FRONT, SMALL = "fastest for its accuracy", "stopped early, not compared"


def front(speed: Floats, accuracy: Floats) -> Flags:
    """[n] whether a point is on the Pareto front of speed and accuracy."""
    faster = speed[:, None] >= speed
    better = accuracy[:, None] >= accuracy
    strictly = (speed[:, None] > speed) | (accuracy[:, None] > accuracy)
    return np.asarray(~(faster & better & strictly).any(axis=0), dtype=np.bool_)


@style.styled()
def pareto(cells: pd.DataFrame, *, caption: str = "") -> Figure:
    """tok/s against the share of right answers, at one concurrency; AR is one of the points.

    Configurations that were stopped early answered fewer prompts: they are drawn small and never on the front. Those
    without accuracy are left out, and the note counts them.
    """
    check(cells)
    if cells["concurrency"].nunique() != 1:
        raise ValueError("cannot compare speeds of several concurrencies in one chart")
    scored = cells[np.isfinite(floats(cells, "accuracy")) & np.isfinite(floats(cells, "decode_tok_s"))]
    if scored.empty:
        raise ValueError("no configuration has both speed and accuracy")
    figure, ((panel,),) = style.panels(height=5.2)
    speed, accuracy = floats(scored, "decode_tok_s"), floats(scored, "accuracy")
    small = np.asarray(scored["stopped"].eq(HALVED), dtype=np.bool_)
    wide, high = bars(scored, "decode_tok_s"), np.where(small, np.nan, accuracy_bars(scored))
    for index, method in enumerate([BASELINE, *methods(scored)]):
        look = style.series(index - 1) if index else {"color": style.BASELINE_COLOUR, "marker": "o"}
        mine = np.asarray(scored["method"].eq(method), dtype=np.bool_)
        x, y = speed[mine], accuracy[mine]
        panel.errorbar(x, y, high[:, mine], wide[:, mine], fmt="none", ecolor=look["color"], alpha=0.4, elinewidth=0.9)
        for which, size, label in ((mine & ~small, 42, method), (mine & small, 12, f"{method}: {SMALL}")):
            if which.any():
                drawn = {"edgecolors": "white", "linewidths": 0.7, "zorder": 3, "label": label, **look}
                panel.scatter(speed[which], accuracy[which], s=size, **drawn)
    compared = np.flatnonzero(~small)
    ahead = compared[front(speed[compared], accuracy[compared])]
    ahead = ahead[np.argsort(speed[ahead], kind="stable")]
    # From each point a horizontal step to the left: the highest speed at this accuracy or better.
    steps = np.stack([np.repeat(speed[ahead], 2)[:-1], np.repeat(accuracy[ahead], 2)[1:]], axis=1)
    panel.plot(*steps.T, color=style.INK, linewidth=1.1, zorder=2, label=FRONT)
    panel.set_xlabel("tok/s")
    panel.set_ylabel("right answers")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.margins(0.08)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    without = len(cells) - len(scored)
    title = f"Speed and right answers · concurrency {shown(cells['concurrency'].iloc[0])}\n{caption}"
    style.titled(figure, title, _note(scored, without))
    named = _named(scored, ahead.tolist())
    points = [(float(speed[i]), float(accuracy[i])) for i in named]
    texts = [str(scored["label"].iloc[i]) for i in named]
    place(panel, points, texts, avoid=np.stack([speed, accuracy], axis=1), lines=[steps] if len(steps) else [])
    return figure


def accuracy_bars(cells: pd.DataFrame) -> Floats:
    """[2, n] lengths of Wilson's intervals, over prompts: repeats of a prompt are not independent samples."""
    found = []
    for share, prompts in zip(floats(cells, "accuracy"), floats(cells, "prompts"), strict=True):
        interval = proportion_interval(round(share * prompts), int(prompts)) if prompts > 0 else None
        # With repeats, a share may lie outside the interval of the nearest whole number of prompts.
        found.append((max(0.0, share - interval.low), max(0.0, interval.high - share)) if interval else (np.nan,) * 2)
    return np.array(found).T


def _named(cells: pd.DataFrame, ahead: Sequence[int]) -> list[int]:
    """Rows with a label: the front, AR, the best, and the fastest of each method."""
    speed = floats(cells, "decode_tok_s")
    found = [*reversed(ahead)]
    found += np.flatnonzero(cells["method"].eq(BASELINE) | flags(cells, "best")).tolist()
    for method in methods(cells):
        found.append(int(np.argmax(np.where(cells["method"].eq(method), speed, -np.inf))))
    return list(dict.fromkeys(found))


def _note(cells: pd.DataFrame, without: int) -> str:
    lines = ["Bars: 95% intervals of tok/s and of the share of right answers (Wilson, over prompts)."]
    lines.append(
        "Methods answer the same prompts, so the uncertainty of a difference is smaller than these bars suggest."
    )
    if without:
        lines.append(f"{without} configuration{' is' if without == 1 else 's are'} not shown: no accuracy or no speed.")
    return " ".join(lines)
