"""Speedup over AR against concurrency, and the concurrency at which speculation stops paying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.report.charts import style
from specbench.report.charts.labels import place
from specbench.report.charts.sweep_cells import HALVED, check, disturbances, floats, lines_of
from specbench.results import BASELINE

CROSSING, PREDICTED, OTHERS, BARE = "crosses 1", "predicted", "other settings", "no interval"


@dataclass(frozen=True)
class Crossing:
    """A point between two measured concurrencies where a method's speedup over AR crosses 1.

    ``concurrency`` is where the line between them meets 1, linear in speedup over log2 of concurrency; ``stops``
    whether it stops to pay there; ``sure`` whether the verdicts at both say so; ``bare`` whether a speedup has no
    interval.
    """

    method: str
    label: str
    between: tuple[int, int]
    concurrency: float
    stops: bool
    sure: bool
    bare: bool = False

    def __str__(self) -> str:
        what = f"{'stops' if self.stops else 'starts'} paying between {self.between[0]} and {self.between[1]}"
        doubt = "" if self.sure else ", not all with an interval" if self.bare else ", within noise"
        return f"{what} (at about {self.concurrency:.3g}{doubt})"


def crossings(cells: pd.DataFrame) -> list[Crossing]:
    """Every crossing of speedup 1, with configurations in the order of the rows.

    A speedup of exactly 1 does not pay. There is no extrapolation beyond the measured concurrencies.
    """
    check(cells)
    found = []
    for line in lines_of(cells):
        at, speedup = floats(line, "concurrency"), floats(line, "speedup")
        shown = line["verdict"].isin(("faster", "slower")).tolist()
        bare = ~np.isfinite(floats(line, "speedup_low"))
        for i in range(len(line) - 1):
            here, there = float(speedup[i]), float(speedup[i + 1])
            if (here > 1) != (there > 1):
                part = (here - 1) / (here - there)
                where = 2 ** (np.log2(at[i]) + part * np.log2(at[i + 1] / at[i]))
                found.append(
                    Crossing(
                        method=str(line["method"].iloc[i]),
                        label=str(line["label"].iloc[i]),
                        between=(int(at[i]), int(at[i + 1])),
                        concurrency=float(where),
                        stops=here > 1,
                        sure=shown[i] and shown[i + 1],
                        bare=bool(bare[i] or bare[i + 1]),
                    )
                )
    return found


def foreseen(cells: pd.DataFrame) -> pd.DataFrame:
    """The configurations with a prediction; their speedup is the prediction divided by AR's prediction."""
    check(cells)
    ar = cells[cells["method"] == BASELINE].set_index("concurrency")["predicted_decode_tok_s"]
    speedup = floats(cells, "predicted_decode_tok_s") / np.asarray(cells["concurrency"].map(ar), dtype=np.float64)
    # A prediction has no interval.
    verdict = np.where(speedup > 1, "faster", np.where(speedup < 1, "slower", "no difference shown"))
    compared = cells.assign(speedup=speedup, speedup_low=speedup, speedup_high=speedup, verdict=verdict)
    return compared[np.isfinite(speedup)]


@style.styled()
def crossing(cells: pd.DataFrame, *, caption: str = "") -> Figure:
    """Speedup over AR against concurrency: measured with its interval, and predicted if there is a prediction.

    Configurations that are their method's fastest at some concurrency have a colour; the others are grey.
    """
    check(cells)
    cells = cells.reset_index(drop=True)  # rows are identified by their index
    lines = list(lines_of(cells))
    if not lines:
        raise ValueError("no configuration has a speedup")
    leading = _leading(lines)
    shown = [line for line, leads in zip(lines, leading, strict=True) if leads]
    others = [line for line, leads in zip(lines, leading, strict=True) if not leads]
    figure, ((panel,),) = style.panels(height=5.2)
    panel.set_xscale("log", base=2)
    style.plain_ticks(panel, np.concatenate([floats(line, "concurrency") for line in lines]))
    panel.axhline(1.0, color=style.BASELINE_COLOUR, linewidth=1.0, label="AR", zorder=1)
    predicted = foreseen(pd.concat([cells[cells["method"] == BASELINE], *shown]))
    for index, line in enumerate(shown):
        look = style.series(index)
        _draw(panel, line, look)
        compared = predicted[predicted.index.isin(line.index)]
        if len(compared):
            at, speedup = floats(compared, "concurrency"), floats(compared, "speedup")
            panel.plot(at, speedup, color=look["color"], linestyle="--", linewidth=1.1, zorder=3, label="_")
    for number, line in enumerate(others):
        at, speedup = floats(line, "concurrency"), floats(line, "speedup")
        label = "_" if number else OTHERS  # in the legend once
        panel.plot(at, speedup, color="#BBBBBB", linewidth=0.7, marker=".", markersize=3, zorder=1, label=label)
    panel.set_xlabel("concurrency (sequences in one forward)")
    panel.set_ylabel("speedup over AR at the same concurrency")
    panel.margins(0.06)
    found = [(passed, style.series(index)["color"]) for index, line in enumerate(shown) for passed in crossings(line)]
    for number, (passed, colour) in enumerate(found):
        panel.scatter(
            [passed.concurrency], [1.0], s=46, marker="D", color="white", edgecolors=colour, linewidths=1.6, zorder=5,
            label="_" if number else CROSSING,
        )  # fmt: skip
    if len(predicted):
        panel.plot([], [], color=style.FAINT, linestyle="--", linewidth=1.1, label=PREDICTED)
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    passages = [passed for passed, _ in found]
    style.titled(
        figure, f"Does it still pay when the machine is busy?\n{caption}", _note(shown, others, passages, predicted)
    )
    drawn_lines = [np.stack([floats(line, "concurrency"), floats(line, "speedup")], axis=1) for line in shown]
    ends = np.stack([panel.get_xlim(), [1.0, 1.0]], axis=1)
    place(
        panel,
        [(passed.concurrency, 1.0) for passed in passages],
        [f"between {passed.between[0]} and {passed.between[1]}" for passed in passages],
        avoid=np.concatenate(drawn_lines),
        lines=[*drawn_lines, ends],
    )
    return figure


def _draw(panel: Axes, line: pd.DataFrame, look: dict[str, Any]) -> None:
    at, speedup = floats(line, "concurrency"), floats(line, "speedup")
    low, high = floats(line, "speedup_low"), floats(line, "speedup_high")
    panel.plot(at, speedup, **look, zorder=4, label=str(line["label"].iloc[0]))
    if (bare := ~np.isfinite(low)).any():
        panel.scatter(
            at[bare], speedup[bare], s=64, facecolors="white", edgecolors=look["color"], linewidths=1.6, zorder=4.5,
            label="_" if BARE in panel.get_legend_handles_labels()[1] else BARE,
        )  # fmt: skip
    if np.isfinite(low).any():
        panel.fill_between(at, low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=2)
        # A band needs two neighbours; a single point has an error bar instead.
        panel.vlines(at, low, high, color=look["color"], alpha=0.5, linewidth=0.9, zorder=3)


def _leading(lines: list[pd.DataFrame]) -> list[bool]:
    """Whether each configuration is its method's fastest at some concurrency; those stopped early never are."""
    every = pd.concat(lines)
    whole = every["speedup"].where(every["stopped"] != HALVED)
    fastest = whole.groupby([every["method"], every["concurrency"]]).transform("max")
    first = every.index[whole.eq(fastest)]
    leads = [bool(line.index.isin(first).any()) for line in lines]
    return leads if any(leads) else [True] * len(lines)


def _note(
    shown: list[pd.DataFrame], others: list[pd.DataFrame], passages: list[Crossing], predicted: pd.DataFrame
) -> str:
    lines = [
        "Bands: 95% intervals over prompts. Where a line crosses 1 is known between two measured concurrencies only."
    ]
    lines += [f"Disturbed: {why}; verdicts are unsure." for line in shown[:1] for why in disturbances(line)]
    count = sum(int((~np.isfinite(floats(line, "speedup_low"))).sum()) for line in shown)
    lines += (
        [f"{count} hollow point{'s have' if count != 1 else ' has'} no interval: too few prompts."] if count else []
    )
    lines += [f"{passed.label} {passed}." for passed in passages]
    lines += [aside for line in shown if (aside := _on_one_side(line))]
    if len(predicted):
        lines.append(
            "Predicted: from tokens per forward, mean rows and the profile's step times, without drafting, padding "
            "rows and empty slots."
        )
        lines += [f"Predicted: {passed.label} {passed}." for passed in crossings(predicted)]
    if others:
        settings = "setting is" if len(others) == 1 else "settings are"
        lines.append(f"{len(others)} further {settings} grey: never the fastest of the method.")
    return " ".join(lines)


def _on_one_side(line: pd.DataFrame) -> str:
    """A sentence about a line that does not cross 1; empty for one that does."""
    at, above = floats(line, "concurrency"), floats(line, "speedup") > 1
    if above.any() and not above.all():
        return ""
    clear = line["verdict"] == ("faster" if above.all() else "slower")
    pays = "pays" if above.all() else "does not pay"
    where = f"where measured, from {at[0]:g} to {at[-1]:g}" if len(at) > 1 else f"at {at[0]:g}"
    bare = ~np.isfinite(floats(line, "speedup_low"))
    doubt = "" if clear.all() else ", not all with an interval" if bare.any() else ", in part within noise"
    return f"{line['label'].iloc[0]} {pays} {where}{doubt}."
