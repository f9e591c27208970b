"""Cells of the report's tables from figures of runs: the terminal's words, with the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.report.document import DASH, Cell, Tone
from specbench.report.tables.figures import accuracy as right
from specbench.report.tables.figures import lossless as graded
from specbench.report.tables.figures import number
from specbench.report.tables.figures import speedup as with_interval
from specbench.report.tables.projection import band

if TYPE_CHECKING:
    from specbench.results.summary_schema import Accuracy, MethodSummary, Speedup


_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad"}

NOTHING = Cell(DASH, tone="faint")


def figure(value: float | None, digits: int) -> Cell:
    """A figure with so many digits."""
    return NOTHING if value is None else Cell(number(value, digits), value)


def count(value: int) -> Cell:
    """A whole number."""
    return Cell(str(value), value)


def ratio(found: Speedup | None) -> Cell:
    """A speedup with its interval below it."""
    if found is None:
        return NOTHING
    if found.interval is None:
        return Cell(number(found.value, 2), found.value, under="no interval")
    low, high = found.low, found.high
    return Cell(number(found.value, 2), found.value, low, high, under=f"[{number(low, 2)}, {number(high, 2)}]")


def one_line(found: Speedup | None) -> Cell:
    """A speedup with its interval beside it."""
    if found is None:
        return NOTHING
    return Cell(with_interval(found), found.value, found.low, found.high)


def verdict(found: Speedup | None) -> Cell:
    """What may be said of a speedup: nothing without an interval."""
    if found is None:
        return NOTHING
    if found.interval is None:
        return Cell("no verdict", under="too few prompts", tone="faint")
    return Cell(found.verdict, tone=_TONES.get(found.verdict, ""))


def accuracy(found: Accuracy | None) -> Cell:
    """Right answers of those scored, and their share with Wilson's interval."""
    if found is None:
        return Cell("not scored", tone="faint")
    share = f"{found.value:.0%}"
    if found.low is not None and found.high is not None:
        share += f" [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return Cell(right(found), found.value, found.low, found.high, under=share)


def lossless(row: MethodSummary) -> Cell:
    """The graded verdict, or that the acceptance was no target's."""
    if row.simulated:
        return Cell(f"simulated {row.simulated}", tone="bad")
    said = graded(row.lossless)
    return Cell(said, tone="faint" if row.lossless is None else "bad" if row.lossless.verdict == "lossy" else "")


def banded(found: Mapping[str, Any] | None, digits: int) -> Cell:
    """A projected figure with its band."""
    return NOTHING if found is None else Cell(band(found, digits), found["value"], found["low"], found["high"])
