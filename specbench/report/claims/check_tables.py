"""Published rows held against a run, in the terminal: those compared, and why others could not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specbench.report.claims.catalog import Catalog, Claim
from specbench.report.claims.check import TOLERANCE, WIDEST, Check
from specbench.report.claims.listing import as_data, words

LEGEND = (
    "there: as printed. here: the run's, with its 95% interval over prompts; repeated is what the interval covers, to "
    f"the last digit printed. Without an interval, marked ~, ours may be {TOLERANCE:.0%} off. Nothing is compared "
    "across sizes of models, tasks, batches, temperatures or options, no speed across GPUs, and nothing by an interval "
    f"wider than ±{WIDEST:.0%}."
)

COLUMNS = ["method", "figure", "there", "here", "verdict", "of what"]


def count(found: Sequence[Check]) -> str:
    """How many figures have which verdict."""
    times = Counter(each.verdict for each in found)
    return (
        f"{times['repeated']} repeated, {times['not repeated']} not repeated, {times['not comparable']} not comparable"
    )


def compared(found: Sequence[Check]) -> Iterator[tuple[list[Claim], list[list[str]]]]:
    """Of each published table that has comparable figures its rows here, and their cells under :data:`COLUMNS`."""
    for some in _together([each for each in found if each.verdict != "not comparable"], _table):
        claims = [each.claim for each in some]
        yield claims, [_cells(each, claims) for each in some]


def _cells(each: Check, claims: list[Claim]) -> list[str]:
    # How tokens per forward are counted there stands over the table.
    why = [part for part in each.why if part != f"TPF there: {each.claim.tpf_is}"]
    said = "; ".join(part for part in (words(each.claim, claims), *why) if part)
    return [each.row, each.figure, str(each.published), _here(each), each.verdict, said]


def _here(each: Check) -> str:
    if each.ours is None:
        return "–"
    # A digit more than was printed: it shows on which side of a rounding ours lies.
    digits = max(-int(each.published.as_tuple().exponent), 0) + 1
    if each.low is None or each.high is None:
        return f"~{each.ours:.{digits}f}"
    return f"{each.ours:.{digits}f} [{each.low:.{digits}f}, {each.high:.{digits}f}]"


def left(found: Sequence[Check]) -> Iterator[tuple[str, list[list[str]]]]:
    """Of each published table whose rows cannot be compared its title, and method and reasons of each row."""
    for some in _together([each for each in found if each.verdict == "not comparable"], _table):
        rows = []
        for figures in _together(some, lambda each: f"{each.claim.id} {each.row}"):
            claim = figures[0].claim
            named = ", ".join(f"{each.figure} {each.published}" for each in figures)
            of_what = ", ".join(part for part in (claim.setting, claim.task) if part)
            why = dict.fromkeys(reason for each in figures for reason in each.why)
            rows.append([figures[0].row, f"{of_what} ({named}): {'; '.join(why)}".strip()])
        yield f"{some[0].claim.paper}: {some[0].claim.source}", rows


def _together(found: Sequence[Check], key: Callable[[Check], str]) -> Iterable[list[Check]]:
    """Those of one key, in the order in which the keys appear."""
    made: dict[str, list[Check]] = {}
    for each in found:
        made.setdefault(key(each), []).append(each)
    return made.values()


def _table(each: Check) -> str:
    return each.claim.id.partition("/")[0]


def check_data(known: Catalog, each: Check) -> dict[str, Any]:
    """A verdict as JSON has it, with its published row."""
    return {
        "claim": as_data(known, each.claim),
        "row": each.row,
        "figure": each.figure,
        "published": float(each.published),
        "ours": each.ours,
        "low": each.low,
        "high": each.high,
        "verdict": each.verdict,
        "why": list(each.why),
    }
