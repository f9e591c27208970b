"""Latency and goodput over the rate at which requests arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from specbench.report.charts import style
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.results import AtRate


@style.styled(style.CARD)
def over_rates(curves: Mapping[str, Sequence[AtRate]]) -> Figure:
    """Median and 95th percentile of latency, time to first token, and good requests per second; a panel each."""
    every = [at for found in curves.values() for at in found]
    panels: list[tuple[str, Callable[[AtRate], float | None]]] = [
        ("latency in s, median", lambda at: _level(at, "latency_s", "p50")),
        ("latency in s, 95th percentile", lambda at: _level(at, "latency_s", "p95")),
        ("time to first token in s, median", lambda at: _level(at, "ttft_s", "p50")),
        ("good requests per second (dotted: all that arrive)", lambda at: at.goodput.value if at.goodput else None),
    ]
    panels = [(title, of) for title, of in panels if any(of(at) is not None for at in every)]
    figure, axes = style.panels(len(panels), width=style.CARD_WIDTH / 72, height=2.2 * len(panels) + 0.8, sharex=True)
    for (title, of), panel in zip(panels, axes[:, 0], strict=True):
        panel.set_title(title, loc="left")
        for number, (label, found) in enumerate(curves.items()):
            look = style.series(number) | ({"color": style.BASELINE_COLOUR} if label == BASELINE else {})
            known = sorted((_rate(at), value) for at in found if (value := of(at)) is not None)
            if known:
                panel.plot(*zip(*known, strict=True), **look, label=style.cut(label, 90))
        if "good" in title:
            rates = sorted({_rate(at) for at in every})
            panel.plot(rates, rates, color=style.FAINT, linestyle=":", linewidth=1.0)
        panel.set_ylim(bottom=0)
    style.plain_ticks(axes[-1][0], sorted({_rate(at) for at in every}))
    axes[-1][0].set_xlabel("requests per second that arrive")
    axes[0][0].legend(loc="best")
    return figure


def _rate(at: AtRate) -> float:
    return at.rate if at.end is None else (at.rate + at.end) / 2


def _level(at: AtRate, field: str, level: str) -> float | None:
    found = getattr(getattr(at, field), level, None)
    return None if found is None else float(found.value)
