"""Spider's comparison, on the judge's side of ``child.py``: two queries must return the same result.

The rule is that of ``exec_eval.py`` of taoyds/test-suite-sql-eval (commit e97acc5) on one database: the same bag of
rows, or the same sequence where the gold query has an ORDER BY, for some order of the columns (found without trying
all orders); two empty results are equal. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from specbench.evals.sandbox import codec, differential
else:  # in the child, which knows no packages
    import codec
    import differential

VERSION = "1"
"""Raised whenever a verdict can change."""

FAILURES = ("denied", "error", "memory", "timeout", "too large")
"""The reasons of ``query.py``; any other reason is not trusted."""

Row = Sequence[Any]


class Failed(Exception):
    """The query failed. ``args`` are the reason and a line."""


def read(
    ask: Callable[[Any], differential.Reply], cases: dict[str, Any], watch: differential.Watch, found: dict[str, Any]
) -> None:
    """Run a gold query.

    Args:
        cases: {"query", "limit": CPU seconds}.
    """
    found["rows"] = codec.pack(_rows(ask, cases, watch))


def check(
    ask: Callable[[Any], differential.Reply], cases: dict[str, Any], watch: differential.Watch, found: dict[str, Any]
) -> None:
    """Run an answer and compare its rows.

    Args:
        cases: those of :func:`read`, and "expected" (packed rows) and "ordered" (whether their order counts).
    """
    rows, expected = _rows(ask, cases, watch), codec.unpack(cases["expected"])
    found["executes"] = True
    if not same(expected, rows, cases["ordered"]):
        raise differential.Wrong(f"{_show(rows)}, expected {_show(expected)}")


def _rows(
    ask: Callable[[Any], differential.Reply], cases: dict[str, Any], watch: differential.Watch
) -> list[tuple[Any, ...]]:
    watch.start(cases["limit"] + 1)  # the clock inside the process is more precise
    result = codec.unpack(ask([cases["query"], cases["limit"]])["value"])
    watch.stop()
    if not isinstance(result, dict):
        raise Failed("error", "the result cannot be read")
    if (reason := result.get("failed")) in FAILURES:
        raise Failed(reason, str(result.get("why")))
    rows = result.get("rows")
    if not isinstance(rows, list) or len({(type(row), len(row)) for row in rows}) > 1:
        raise Failed("error", "the result cannot be read")
    return rows


def same(gold: Sequence[Row], answer: Sequence[Row], ordered: bool) -> bool:
    """Whether two results are the same up to the order of columns, and of rows unless ``ordered``.

    Args:
        gold, answer: rows of hashable values; rows of one result have equal lengths.
    """
    if len(gold) != len(answer):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(answer[0]):
        return False
    left, right = list(zip(*gold, strict=True)), list(zip(*answer, strict=True))
    if ordered:
        return Counter(left) == Counter(right)
    bags = [frozenset(Counter(column).items()) for column in right]
    fits = [[at for at, bag in enumerate(bags) if bag == frozenset(Counter(column).items())] for column in left]
    return _assign(left, right, fits, [])


def _assign(left: Sequence[Row], right: Sequence[Row], fits: Sequence[Sequence[int]], taken: Sequence[int]) -> bool:
    """Whether the gold columns from ``len(taken)`` on can be matched so that all rows agree on the columns so far."""
    if len(taken) == len(left):
        return True
    gold = Counter(zip(*left[: len(taken) + 1], strict=True))
    tried: set[Row] = set()
    for at in fits[len(taken)]:
        if at in taken or right[at] in tried:  # equal columns are interchangeable
            continue
        tried.add(right[at])
        together = Counter(zip(*(right[one] for one in (*taken, at)), strict=True))
        if together == gold and _assign(left, right, fits, [*taken, at]):
            return True
    return False


def _show(rows: Sequence[Row]) -> str:
    return f"{len(rows)} rows {rows[:3]!r}"[:85]
