"""Format figures as text and as table cells, so that sentences and tables write them in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.report.document import NOTHING, Cell, Tone

if TYPE_CHECKING:
    from specbench.results import Accuracy, Estimate, Lossless, MethodSummary, Rate, Speedup


ONE = Cell("1", 1.0)  # a baseline's speedup over itself
_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad"}


def name(row: MethodSummary) -> str:
    """Label of a row, with marks for simulated acceptance, a failed row, or another precision."""
    if row.simulated:
        return f"{row.method} (simulated)"
    return f"{row.method} ({', '.join(marks)})" if (marks := _marks(row)) else row.method


def _marks(row: MethodSummary) -> list[str]:
    facts = row.other.facts if row.other else None
    asked = str(row.options.get("dtype", "auto")) if row.other else "auto"
    other = [asked] if facts and asked != "auto" else []
    return [*other, *(["failed"] if row.failed else [])]


def number(value: float | None, digits: int) -> str:
    """Format a figure; None is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def speedup(ratio: Speedup | None) -> str:
    if ratio is None:
        return "–"
    if ratio.interval is None:
        return f"{ratio.value:.2f} (too few)"
    low, high = ratio.interval
    return f"{ratio.value:.2f} [{low:.2f}, {high:.2f}]"


def percent(share: float) -> str:
    """Format a share as percent, with one decimal below 3%."""
    return f"{share:.1%}" if share < 0.0295 else f"{share:.0%}"


def figure(value: float | None, digits: int | None) -> Cell:
    """A cell with ``digits`` decimals; None writes the shortest form."""
    if value is None:
        return NOTHING
    return Cell(f"{value:g}" if digits is None else number(value, digits), value)


def known(value: float | None, digits: int) -> Cell:
    """A cell for a value of a data frame; None and nan are missing."""
    return NOTHING if value is None or value != value else figure(float(value), digits)


def count(value: int) -> Cell:
    return Cell(str(value), value)


def share(value: float | None) -> Cell:
    """A share in percent."""
    return NOTHING if value is None else Cell(f"{value:.0%}", value)


def small_share(value: float | None) -> Cell:
    """A share in percent, with a decimal if it is small."""
    return NOTHING if value is None else Cell(percent(value), value)


def ratio(found: Speedup | None) -> Cell:
    """A speedup with its interval on a second line, or on the same line in a terminal."""
    if found is None:
        return NOTHING
    under = "no interval"
    if found.interval is not None:
        under = f"[{number(found.low, 2)}, {number(found.high, 2)}]"
    line = speedup(found)
    return Cell(number(found.value, 2), found.value, found.low, found.high, under=under, line=line)


def one_line(found: Speedup | None) -> Cell:
    """A speedup and its interval on one line."""
    if found is None:
        return NOTHING
    line = speedup(found)
    return Cell(line, found.value, found.low, found.high, line=line)


def interval(found: Estimate | None, digits: int) -> Cell:
    """A figure and its interval, if it has one, on one line."""
    if found is None:
        return NOTHING
    text = number(found.value, digits)
    if found.interval:
        text += " [{}, {}]".format(*(number(end, digits) for end in found.interval))
    return Cell(text, found.value, found.low, found.high)


def verdict(found: Speedup | None) -> Cell:
    """The verdict on a speedup; without an interval there is none."""
    if found is None:
        return NOTHING
    if found.interval is None:
        return Cell("no verdict", under="too few prompts", tone="faint")
    return Cell(found.verdict, tone=_TONES.get(found.verdict, ""))


def accuracy(found: Accuracy | None) -> Cell:
    """Right answers out of the scored ones, and their share with Wilson's interval."""
    if found is None:
        return Cell("not scored", tone="faint", line="–")
    under = f"{found.value:.0%}"
    if found.low is not None and found.high is not None:
        under += f" [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return Cell(f"{found.passed}/{found.scored}", found.value, found.low, found.high, under=under)


def lossless(row: MethodSummary) -> Cell:
    """The lossless verdict, or that acceptance was simulated."""
    if row.simulated:
        return Cell(f"simulated {row.simulated}", tone="bad")
    return graded(row.lossless)


def graded(found: Lossless | None) -> Cell:
    """The lossless verdict, with counts unless every answer is exact."""
    if found is None:
        return Cell("not checked", tone="faint")
    if found.verdict == "exact":
        return Cell("exact")
    differing = found.numeric_tie + found.lossy
    tone: Tone = "bad" if found.verdict == "lossy" else ""
    return Cell(f"{found.verdict} {differing}/{differing + found.exact}", tone=tone)


def rate(found: Rate | None) -> Cell:
    """Prompts of one grade out of the graded ones, with Wilson's interval of their share."""
    if found is None:
        return NOTHING
    text, under = f"{found.count}/{found.of}", ""
    if found.low is not None and found.high is not None:
        under = f"[{100 * found.low:.0f}%, {100 * found.high:.0f}%]"
    value = found.count / found.of if found.of else None
    return Cell(text, value, found.low, found.high, under=under, line=f"{text} {under}".strip())


def banded(found: Mapping[str, Any] | None, digits: int) -> Cell:
    """A projected figure with its band."""
    if found is None:
        return NOTHING
    value, low, high = (found[end] for end in ("value", "low", "high"))
    line = f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
    return Cell(line, value, low, high, line=line)
