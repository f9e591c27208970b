"""Throughput of the machine against the speed that each user sees, over concurrency: InferenceMAX's axes."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from specbench.report.charts import style
from specbench.report.charts.user_lines import user_lines, user_sentences


@style.styled()
def users(cells: pd.DataFrame, *, caption: str = "") -> Figure:
    """All users' tok/s together against each user's tok/s; each point is a number of users."""
    baseline, lines = user_lines(cells)
    if baseline is None or not lines:
        raise ValueError("no configuration was measured at several concurrencies next to AR")
    figure, ((panel,),) = style.panels(height=5.2)
    for number, line in enumerate([baseline, *lines]):
        look = style.series(number - 1) if number else {"color": style.BASELINE_COLOUR, "marker": "o"}
        panel.plot(line.per_user, line.throughput, **look, label=line.label, zorder=4 if number else 3)
        for count, x, y in zip(line.users, line.per_user, line.throughput, strict=True):
            panel.annotate(f"{count:g}", (x, y), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    panel.set_xlabel("tok/s of each user (1 / median time per output token)")
    panel.set_ylabel("tok/s of all users together")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    note = "Numbers at the points: users, which are sequences in one forward. Further right and up is better."
    title = f"At equal user experience, how much does the machine give?\n{caption}"
    style.titled(figure, title, " ".join([note, *user_sentences(baseline, lines)]))
    return figure
