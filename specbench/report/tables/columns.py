"""Definitions of the columns that several tables share: key, heading, digits and cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specbench.report.document import Cell, Column
from specbench.report.tables import cell
from specbench.results import BASELINE


@dataclass(frozen=True)
class Filled(Column):
    """A column that makes its own cell from a record, such as a method's summary."""

    get: Callable[[Any], Cell] = lambda _: cell.NOTHING


def cells_of(columns: Sequence[Filled], record: Any) -> list[Cell]:
    """The cells of one record."""
    return [column.get(record) for column in columns]


def figure(key: str, title: str, digits: int | None, times: float = 1.0, **more: Any) -> Filled:
    """A column for the record's attribute ``key`` (or ``of``), multiplied by ``times`` to change its unit."""
    name = more.pop("of", key)

    def get(record: Any) -> Cell:
        value = getattr(record, name)
        return cell.figure(None if value is None else times * value, digits)

    return Filled(key, title, get=get, **more)


def speedup_column(key: str, title: str, made: Callable[[Any], Cell] = cell.ratio, **more: Any) -> Filled:
    """A column for a ratio over AR with its interval; AR's own is 1."""
    return Filled(
        key, title, get=lambda record: cell.ONE if record.method == BASELINE else made(getattr(record, key)), **more
    )


def words(key: str, title: str, get: Callable[[Any], str], **more: Any) -> Filled:
    """A column of text."""
    return Filled(key, title, words=True, get=lambda record: Cell(get(record)), **more)


def _verdict(record: Any) -> Cell:
    if record.method == BASELINE:
        return Cell("baseline", tone="faint")
    if again := getattr(record, "again", None):  # a repeated method: any difference is noise, so no verdict over AR
        return Cell("A/A", under=f"repeats {again.of}", tone="faint")
    return cell.verdict(record.speedup)


METHOD = words("method", "method", lambda record: str(record.method))
NAME = words("method", "method", cell.name)
PROMPTS = Filled("prompts", "prompts", get=lambda record: cell.count(record.prompts))
TOKENS = Filled("tokens", "tokens", get=lambda record: cell.count(record.tokens))
TPF = figure("tokens_per_forward", "TPF", 2)
TOK_S = figure("decode_tok_s", "tok/s", 1)
STEP_RATIO = Filled("step_ratio", "step ratio", get=lambda record: _own(record, cell.figure(record.step_ratio, 2)))
SPEEDUP = speedup_column("speedup", "speedup")
E2E = speedup_column("e2e_speedup", "e2e")
VERDICT = Filled("verdict", "verdict", words=True, get=_verdict)


def _own(record: Any, other: Cell) -> Cell:
    return cell.ONE if record.method == BASELINE else other


def on(only: Any, *columns: Filled) -> list[Filled]:
    """The same columns, shown on one medium only."""
    return [replace(column, only=only) for column in columns]
