"""A table of runs with any two axes: models, tasks, methods, options, temperatures across and down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from specbench.analysis import UNSURE
from specbench.common import UsageError, unknown_name
from specbench.report.document import NOTHING, Cell, Column, Row, Source, Table
from specbench.report.render.frames import column_meant
from specbench.report.tables.cell import number
from specbench.results import BASELINE

_BUDGET = "max_new_tokens"

#: Axes of every run; the options of methods are axes too.
_AXES = ("model", "dtype", "device", "task", "temperature", "concurrency", _BUDGET, "method")

#: Figures shown without --value, as far as a run has them, with heading, digits and factor.
_FIGURES: Mapping[str, tuple[str, int, float]] = {
    "speedup": ("speedup", 2, 1),
    "tokens_per_forward": ("TPF", 2, 1),
    "decode_tok_s": ("tok/s", 1, 1),
    "accuracy": ("accuracy %", 1, 100),
    "rating": ("rating", 2, 1),
}

#: Most columns without --value.
_MOST = 8

_LEGEND = (
    "Bold: the best of its column whose texts are AR's, for each model. [low, high]: 95% interval. *: it, and "
    "the interval that holds jointly for all rows of the run, exclude 1. †: as fast as the fastest of its run within "
    "noise. ‡: some texts are not AR's. ?: the machine was disturbed."
)


@dataclass(frozen=True)
class Layout:
    """Axes down and across, and figures; empty ones are chosen from what differs between the runs."""

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    values: Sequence[str] = ()


def crosstab(frame: pd.DataFrame, layout: Layout, title: str = "") -> Table:
    """A table of :func:`specbench.analysis.load_methods`; an axis that varies and is not named goes down.

    UsageError: an unknown axis or figure, or several rows of the frame in one cell.
    """
    values, without = [_figure(frame, name) for name in layout.values], list[str]()
    down, across = ([_axis(frame, name) for name in names] for names in (layout.rows, layout.columns))
    if twice := [name for name in down if name in across]:
        raise UsageError(f"cannot put {twice[0]} both down and across; name it once")
    if any(name.startswith("option_") for name in (*down, *across)):
        used = [name for name in (*down, *across) if name.startswith("option_")]
        has = frame[used].notna().any(axis=1)
        without, frame = list(dict.fromkeys(frame["method"][~has])), frame[has]
        # A label repeats the options that are axes.
        frame = frame.assign(method=frame["method_name"])
    if not across and not layout.rows and frame["task"].nunique() > 1:
        across = ["task"]
    others = [name for name in _AXES if name not in (*down, *across) and _varies(frame, name)]
    down = [*(name for name in others if not layout.rows), *down, *(name for name in others if layout.rows)]
    down = down or [name for name in ("method",) if name not in across] or ["model"]
    tops, sides = _places(frame, across), _places(frame, down)
    values = values or _shown(frame, len(down), len(tops))
    cells = _cells(frame, down, across)
    columns = [*(Column(name, _titled(name), words=True, once=at < len(down) - 1) for at, name in enumerate(down))]
    for top in tops:
        for value in values:
            group = ", ".join(_heading(name, each) for name, each in zip(across, top, strict=True))
            own = _FIGURES.get(value, (value,))[0] if len(values) > 1 or not group else ""
            columns.append(Column(" ".join([value, group]).strip(), f"{group} {own}".strip(), group=group))
    body = []
    strong = _best(cells, sides, tops, values, down)
    for side in sides:
        names = [Cell(_text(name, each)) for name, each in zip(down, side, strict=True)]
        filled = [
            replace(_cell(cells.get((side, top)), value), strong=(side, top, value) in strong)
            for top in tops
            for value in values
        ]
        key = " / ".join(cell.text for cell in names)
        body.append(Row([*names, *filled], key=key))
    shown = [_FIGURES.get(value, (value,))[0] for value in values]
    heading = title or (f"{', '.join(shown)}" if len(values) == 1 else "")
    left_out = f" Left out, without these options: {', '.join(without)}." if without else ""
    return Table("crosstab", heading, columns, body, Source((), _LEGEND + left_out))


def _varies(frame: pd.DataFrame, name: str) -> bool:
    """Whether an axis has several values; a budget counts only within a task, since tasks have their own."""
    values = frame.groupby("task")[name].nunique().max() if name == _BUDGET else frame[name].nunique()
    return bool(values > 1)


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Names that --rows and --columns take."""
    return [*_AXES, *(name.removeprefix("option_") for name in frame.columns if name.startswith("option_"))]


def _axis(frame: pd.DataFrame, name: str) -> str:
    found = name if name in _AXES else f"option_{name}"
    if found not in frame.columns:
        raise unknown_name("axis", name, axes_of(frame), "in --rows and --columns")
    return found


def _figure(frame: pd.DataFrame, name: str) -> str:
    found = column_meant(name, frame.columns)
    if not pd.api.types.is_numeric_dtype(frame[found]):
        raise UsageError(f"cannot use --value {name}: it is no figure; name one such as speedup or accuracy")
    return found


def _shown(frame: pd.DataFrame, names: int, tops: int) -> list[str]:
    quality = [name for name in frame.columns if name.startswith(("quality_", "rating_"))]
    there = [name for name in (*_FIGURES, *quality) if name in frame.columns and frame[name].notna().any()]
    return there[: max(1, (_MOST - names) // max(1, tops))]


def _places(frame: pd.DataFrame, axes: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of some axes that occur together, in order of first appearance; numbers are sorted."""
    if not axes:
        return [()]
    found = list(dict.fromkeys(_key(row, axes) for row in frame.to_dict("records")))
    order = {
        name: {each: at for at, each in enumerate(_ordered([key[of] for key in found]))} for of, name in enumerate(axes)
    }
    return sorted(found, key=lambda key: [order[name][each] for name, each in zip(axes, key, strict=True)])


def _ordered(values: Sequence[Any]) -> list[Any]:
    once = list(dict.fromkeys(values))
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in once if each is not None)
    return sorted(once, key=lambda each: (each is not None, each or 0)) if numbers else once


def _key(row: Mapping[Any, Any], axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(None if pd.isna(row[name]) else row[name] for name in axes)


_Cells = dict[tuple[tuple[Any, ...], tuple[Any, ...]], Mapping[Any, Any]]


def _cells(frame: pd.DataFrame, down: Sequence[str], across: Sequence[str]) -> _Cells:
    found: _Cells = {}
    for row in frame.to_dict("records"):
        place = _key(row, down), _key(row, across)
        before = found.get(place)
        if before and row["complete"] and before["complete"] and row["prompts"] != before["prompts"]:
            raise UsageError(
                f"cannot make a table: {found[place]['run']} and {row['run']} have other prompts; show each by itself"
            )
        if place in found and not (row["method_name"] == BASELINE and found[place]["method_name"] == BASELINE):
            other = found[place]
            differ = [name for name in frame.columns if name.startswith("option_") and _differ(row[name], other[name])]
            names = " or ".join(name.removeprefix("option_") for name in differ[:3]) or "fewer folders"
            raise UsageError(
                f"cannot make a table: {other['run']} and {row['run']} have {row['method']} in one cell; "
                f"add to --rows or --columns: {names}"
            )
        found.setdefault(place, row)
    return found


def _differ(one: Any, other: Any) -> bool:
    return str(one) != str(other)


def _best(
    cells: _Cells, sides: Sequence[Any], tops: Sequence[Any], values: Sequence[str], down: Sequence[str]
) -> set[tuple[Any, Any, str]]:
    """The best place of each column and figure among the rows of one model; none where there is one row.

    A row with other texts than AR's never is the best.
    """
    found = set()
    model = down.index("model") if "model" in down else None
    for top in tops:
        for value in values:
            for part in dict.fromkeys(side[model] if model is not None else None for side in sides):
                mine = [side for side in sides if model is None or side[model] == part]
                known = {
                    side: float(cells[side, top][value])
                    for side in mine
                    if (side, top) in cells
                    and cells[side, top]["lossless"] != "lossy"
                    and not pd.isna(cells[side, top][value])
                }
                end_of = _end_of(value)
                if len(known) > 1 and end_of is not None:
                    end = end_of(known.values())
                    found |= {(side, top, value) for side, each in known.items() if each == end}
    return found


def _end_of(value: str) -> Callable[[Iterable[float]], float] | None:
    """The end of a figure's values that is best; None where neither is known to be."""
    if (
        value in _FIGURES
        or value.startswith(("quality_", "accuracy", "speedup", "e2e_speedup"))
        or value.endswith("tok_s")
    ):
        return max
    return min if re.search(r"_s(_p\d+|_median)?$|_median_s$|_bytes$", value) else None


def _cell(row: Mapping[Any, Any] | None, value: str) -> Cell:
    if row is None or pd.isna(row[value]):
        return NOTHING
    _, digits, times = _FIGURES.get(value, ("", 3, 1))
    figure = float(row[value]) * times
    low, high = (_end(row, f"{value}_{end}", times) for end in ("low", "high"))
    if row["method_name"] == BASELINE and value.endswith("speedup"):
        low = high = None  # over itself
    text = f"{number(figure, digits)}{''.join(_marks(row, value))}"
    under = f"[{number(low, digits)}, {number(high, digits)}]" if low is not None and high is not None else ""
    return Cell(text, figure, low, high, under=under, line=f"{text} {under}".strip())


def _end(row: Mapping[Any, Any], name: str, times: float) -> float | None:
    return None if name not in row or pd.isna(row[name]) else float(row[name]) * times


def _marks(row: Mapping[Any, Any], value: str) -> Iterator[str]:
    if value == "speedup" and row["method_name"] != BASELINE:
        verdict = "" if pd.isna(row["speedup_verdict"]) else str(row["speedup_verdict"])
        if verdict.startswith(UNSURE):
            yield "?"
        elif verdict in ("faster", "slower"):
            yield "*"
        if not pd.isna(row.get("within_noise")) and row["within_noise"]:
            yield "†"
    if row["lossless"] == "lossy":
        yield "‡"


def _titled(axis: str) -> str:
    return axis.removeprefix("option_")


def _heading(axis: str, value: Any) -> str:
    """A value in a column's heading; that of an option has the option's name."""
    text = _text(axis, value)
    return f"{_titled(axis)} = {text}" if axis.startswith("option_") else text


def _text(axis: str, value: Any) -> str:
    if value is None:
        return "–"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"T = {text}" if axis == "temperature" else f"{text} at once" if axis == "concurrency" else text
