"""Speed against quality: configurations that are fastest for their accuracy, and texts of fine-tuned models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specbench.analysis import proportion_interval
from specbench.report.charts import style
from specbench.report.charts.labels import place
from specbench.report.charts.sweep_cells import HALVED, Flags, Floats, bars, check, flags, floats, methods, shown
from specbench.report.gathering import Run
from specbench.results import BASE, BASELINE, MethodSummary

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


_AXES = {
    "agreement": "share of tokens equal to the base's AR answer",
    "log_likelihood_per_token": "log-likelihood per token under the base",
}


def has_texts(runs: Sequence[Run]) -> bool:
    """Whether methods on several models are compared with AR on one base."""
    return len({run.config.model.name for run, _ in _points(runs)}) > 1


@style.styled()
def speed_over_text(runs: Sequence[Run], *, caption: str = "") -> Figure:
    """Speedup over the base's AR against agreement with its answers, and against their log-likelihood under the base.

    The base's AR is at 1, with its own log-likelihood; a method on the right of it writes more likely texts.
    """
    figure, (panels,) = style.panels(1, 2, height=4.4, sharey=True)
    points = list(_points(runs))
    for at, (run, row) in enumerate(points):
        assert row.over_base is not None
        assert row.over_base.speedup is not None
        speed = row.over_base.speedup
        low, high = speed.interval or (speed.value, speed.value)
        label = row.method if row.method != BASELINE else f"{BASELINE} on {run.config.model.name}"
        for panel, name in zip(panels, _AXES, strict=True):
            value = getattr(row.text, name)
            if value is not None:
                bars = [[speed.value - low], [high - speed.value]]
                panel.errorbar([value], [speed.value], bars, label=label, **style.series(at), linestyle="none")
    agreement, likelihood = panels
    base = [row.text for run in runs for row in run.summary.rows if row.method == BASE and row.text]
    likely = [text.log_likelihood_per_token for text in base if text.log_likelihood_per_token is not None]
    plain = {"color": style.BASELINE_COLOUR, "marker": "o", "linestyle": "none", "label": f"{BASELINE} on the base"}
    agreement.plot([1.0], [1.0], **plain)
    if likely:
        likelihood.plot([sum(likely) / len(likely)], [1.0], **plain)
    for panel, label in zip(panels, _AXES.values(), strict=True):
        panel.axhline(1.0, color=style.BASELINE_COLOUR, linewidth=0.9, linestyle=":")
        panel.set(xlabel=label)
    agreement.set(ylabel="speedup over the base's AR")
    likelihood.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    style.titled(figure, f"Speed and text of fine-tuned models\n{caption}", "Bars: 95% intervals over prompts.")
    return figure


def _points(runs: Sequence[Run]) -> Iterator[tuple[Run, MethodSummary]]:
    """The rows that were compared with the base's AR, with their runs; the newest of several runs of one model."""
    newest = {run.config.model.name: run for run in sorted(runs, key=lambda run: run.folder)}
    for run in newest.values():
        for row in run.summary.rows:
            if row.over_base and row.over_base.speedup and row.text and not (row.simulated or row.failed or row.again):
                yield run, row
