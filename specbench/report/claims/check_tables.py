"""Tables of the comparison of published rows with a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specbench.report.claims.catalog import Catalog, Claim
from specbench.report.claims.check import TOLERANCE, WIDEST, Check
from specbench.report.claims.listing import OF_WHAT, claim_data, common, heading, table_of, words
from specbench.report.document import NOTHING, Block, Cell, Column, Row, Table, Title, Words
from specbench.report.tables.columns import METHOD, VERDICT

_LEGEND = (
    "there: as printed. here: this run's figure with its 95% interval over prompts. repeated: the interval covers the "
    f"printed figure, to its last digit. Figures without an interval (~) may differ by {TOLERANCE:.0%}. Not compared: "
    "other model sizes, tasks, batch sizes, temperatures or options; speeds on other GPUs; intervals wider than "
    f"±{WIDEST:.0%}."
)


def check_report(found: Sequence[Check], run: str) -> list[Block]:
    """Tables of the compared rows, and of the others with the reasons."""
    times = Counter(each.verdict for each in found)
    counts = ", ".join(f"{times[verdict]} {verdict}" for verdict in ("repeated", "not repeated", "not comparable"))
    blocks: list[Block] = [Words([_LEGEND]), Words([f"{run}: {counts}"])]
    for some in _together([each for each in found if each.verdict != "not comparable"], _table_of_check):
        claims = [each.claim for each in some]
        blocks += [heading(claims), _compared(some, claims)]
    for some in _together([each for each in found if each.verdict == "not comparable"], _table_of_check):
        blocks += [Title(f"{some[0].claim.paper}: {some[0].claim.source}"), _left(some)]
    return blocks


def _compared(found: Sequence[Check], claims: Sequence[Claim]) -> Table:
    columns = [
        METHOD, Column("figure", "figure", words=True), Column("there", "there"), Column("here", "here"),
        VERDICT, OF_WHAT,
    ]  # fmt: skip
    alike, body = common(claims), []
    for each in found:
        remarks = "; ".join(part for part in (words(each.claim, alike), *each.why) if part)
        there = Cell(str(each.published), float(each.published))
        body.append(Row([Cell(each.row), Cell(each.figure), there, here_cell(each), Cell(each.verdict), Cell(remarks)]))
    return Table("compared", "", columns, body)


def _left(found: Sequence[Check]) -> Table:
    body = []
    for figures in _together(found, lambda each: f"{each.claim.id} {each.row}"):
        claim = figures[0].claim
        named = ", ".join(f"{each.figure} {each.published}" for each in figures)
        of_what = ", ".join(part for part in (claim.setting, claim.task) if part)
        why = dict.fromkeys(reason for each in figures for reason in each.why)
        body.append(Row([Cell(figures[0].row), Cell(f"{of_what} ({named}): {'; '.join(why)}".strip())]))
    return Table("left", "", [METHOD, Column("why", "not comparable", words=True)], body)


def here_cell(each: Check) -> Cell:
    if each.ours is None:
        return NOTHING
    # One more digit than printed, to show on which side of the rounding our figure lies.
    digits = max(-int(each.published.as_tuple().exponent), 0) + 1
    if each.low is None or each.high is None:
        line = f"~{each.ours:.{digits}f}"
    else:
        line = f"{each.ours:.{digits}f} [{each.low:.{digits}f}, {each.high:.{digits}f}]"
    return Cell(line, each.ours, each.low, each.high, line=line)


def _together(found: Sequence[Check], key: Callable[[Check], str]) -> Iterable[list[Check]]:
    """Group checks by key, in order of first appearance."""
    made: dict[str, list[Check]] = {}
    for each in found:
        made.setdefault(key(each), []).append(each)
    return made.values()


def _table_of_check(each: Check) -> str:
    return table_of(each.claim)


def check_data(known: Catalog, each: Check) -> dict[str, Any]:
    """A verdict with its published row, as JSON-ready data."""
    return {
        "claim": claim_data(known, each.claim),
        "row": each.row,
        "figure": each.figure,
        "published": float(each.published),
        "ours": each.ours,
        "low": each.low,
        "high": each.high,
        "verdict": each.verdict,
        "why": list(each.why),
    }
