"""Speed over one quantity: an option such as the block size n (CLLM, Fig. 3), the model's size (MSN, Fig. 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from specbench.report.charts import style
from specbench.report.charts.pareto import accuracy_bars
from specbench.report.charts.sweep_cells import bars, check, floats, options, shown, values_of
from specbench.report.tables.run_table import candidates
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.report.gathering import Run

_ASIDE = 1.02  # shifts each line a little to the right, so that their bars do not cover each other


@style.styled()
def over_option(cells: pd.DataFrame, method: str, option: str, *, caption: str = "") -> Figure:
    """Two panels with one axis: speedup above, right answers below; a line per combination of the other options."""
    check(cells)
    mine = cells[(cells["method"] == method) & cells[option].notna()]
    varying = [name for name, count in options(mine).items() if count > 1 and name != option]
    figure, axes = style.panels(2, 1, height=6.4, sharex=True)
    speedup, right = axes[:, 0]
    logarithmic = min(values_of(mine, option)) > 0
    groups = mine.groupby(varying, sort=False, dropna=False) if varying else [((), mine)]
    for at, (values, part) in enumerate(groups):
        line = part.sort_values(option)
        label = ", ".join(f"{name} {shown(value)}" for name, value in zip(varying, values, strict=True)) or method
        look, x = style.series(at), floats(line, option) * (_ASIDE**at if logarithmic else 1)
        speedup.errorbar(x, floats(line, "speedup"), bars(line, "speedup"), label=label, **look)
        right.errorbar(x, floats(line, "accuracy"), accuracy_bars(line), label=label, **look)
    plain = cells[cells["method"] == BASELINE]
    dotted = {"color": style.BASELINE_COLOUR, "linewidth": 0.9, "linestyle": ":"}
    speedup.axhline(1.0, label=BASELINE, **dotted)
    if np.isfinite(floats(plain, "accuracy")).any():
        right.axhline(float(np.nanmean(floats(plain, "accuracy"))), label=BASELINE, **dotted)
    if logarithmic:
        right.set_xscale("log")
    style.plain_ticks(right, values_of(mine, option))
    right.set_xlabel(option)
    speedup.set_ylabel("speedup")
    right.set_ylabel("right answers")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    speedup.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    note = "Bars: 95% intervals of the speedup and of the share of right answers (Wilson), over prompts."
    style.titled(figure, f"{method} over {option}\n{caption}", note)
    return figure


@style.styled()
def over_size(runs: Sequence[Run], *, caption: str = "") -> Figure:
    """A line per method over the parameters of its models; of several runs of one model the newest counts."""
    lines: dict[str, dict[int, tuple[float, float | None, float, float]]] = defaultdict(dict)
    names: dict[int, str] = {}
    for run in sorted(runs, key=lambda run: run.folder):
        for row in candidates(run):
            if row.speedup is None:
                continue
            low, high = row.speedup.interval or (row.speedup.value, row.speedup.value)
            size = run.config.model.parameters
            names[size] = run.config.model.name
            lines[row.method][size] = row.speedup.value, row.tokens_per_forward, low, high
    figure, ((speedup, tokens),) = style.panels(1, 2, height=4.4, sharex=True)
    for at, (method, found) in enumerate(lines.items()):
        sizes = sorted(found)
        values = [found[size][0] for size in sizes]
        below = [found[size][0] - found[size][2] for size in sizes]
        above = [found[size][3] - found[size][0] for size in sizes]
        speedup.errorbar(sizes, values, [below, above], label=method, **style.series(at))
        tokens.plot(sizes, [found[size][1] for size in sizes], label=method, **style.series(at))
    speedup.axhline(1.0, color=style.BASELINE_COLOUR, linewidth=0.9, linestyle=":")
    for panel, label in ((speedup, "speedup"), (tokens, "tokens per forward")):
        panel.set_xscale("log")
        panel.set_xticks(sorted(names), [f"{size / 1e9:.3g} B" for size in sorted(names)])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set(xlabel="parameters of the model", ylabel=label)
    tokens.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    models = ", ".join(f"{size / 1e9:.3g} B {names[size]}" for size in sorted(names))
    style.titled(figure, f"Over the size of the model\n{caption}", f"{models}. Bars: 95% intervals over prompts.")
    return figure
