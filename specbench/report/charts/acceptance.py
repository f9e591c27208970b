"""Accepted length over the draft length: a line per method."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from specbench.analysis import AcceptanceCurves
from specbench.report.charts import style


def save_acceptance(curves: AcceptanceCurves, folder: Path, caption: str) -> Path:
    """Draw the curves as ``acceptance.png``."""
    return style.save(acceptance_chart(curves, caption), folder / "acceptance.png")


@style.styled()
def acceptance_chart(curves: AcceptanceCurves, caption: str = "") -> Figure:
    """Accepted length over the draft length, with its interval; the grey line accepts every draft token."""
    lines: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
    for row in curves.rows:
        if row.acceptance and row.draft_length:
            length = row.acceptance.length
            low, high = length.interval or (length.value, length.value)
            lines[row.row.rpartition(" ")[0]].append((row.draft_length, length.value, low, high))
    figure, ((panel,),) = style.panels(height=4.6)
    most = max(high for found in lines.values() for *_, high in found)
    lengths = sorted({found[0] for line in lines.values() for found in line})
    panel.plot([lengths[0], lengths[-1]], [1 + lengths[0], 1 + lengths[-1]], color=style.FAINT, label="all accepted")
    for number, (label, found) in enumerate(lines.items()):
        at, value, low, high = np.array(sorted(found)).T
        at += 0.025 * (number - (len(lines) - 1) / 2)  # intervals side by side
        look = style.series(number)
        panel.plot(at, value, **look, label=style.cut(label, 160), zorder=3)
        panel.vlines(at, low, high, color=look["color"], linewidth=1, alpha=0.6)
    panel.set_xlabel("draft length k")
    panel.set_ylabel("accepted length")
    style.plain_ticks(panel, lengths)
    panel.set_ylim(1, 1.08 * most)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    style.titled(figure, f"How many draft tokens does the target accept?\n{caption}", _NOTE)
    return figure


_NOTE = "accepted length: accepted draft tokens per draft, plus 1 for the bonus token; bars: 95% interval over prompts"
