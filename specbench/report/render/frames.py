"""Formats: a table as CSV, JSON, Markdown or LaTeX for other tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import pandas as pd

from specbench.common.shown import visible

_DIGITS = 6  # of figures that people read; CSV and JSON have all
_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # would end a row of a table for people
_FORMULA = re.compile(r"[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # what a spreadsheet computes, wide ones too


def write(frame: pd.DataFrame, to: str, file: TextIO) -> None:
    """Write a table, as :func:`specbench.load` returns it, in one of the :data:`FORMATS`."""
    FORMATS[to](frame, file)


def _csv(frame: pd.DataFrame, file: TextIO) -> None:
    """RFC 4180 but for its line ends; floats as they are, missing values empty, texts by :func:`csv_cell`."""
    file.write(to_csv(frame))


def to_csv(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """A table as CSV that a spreadsheet opens without computing anything in it; ``float_format`` as ``%.6g``."""
    safe = {at: frame.iloc[:, at] for at in range(frame.shape[1])}
    safe = {at: column if _plain_values(column) else column.map(csv_cell) for at, column in safe.items()}
    made = pd.DataFrame(safe, index=frame.index)
    made.columns = pd.Index([csv_cell(str(name)) for name in frame.columns])
    return str(made.to_csv(index=False, lineterminator="\n", float_format=float_format))


def _plain_values(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column))


def csv_cell(value: Any) -> Any:
    """A value as a cell of a CSV: of a text one visible line, with an apostrophe where it would be a formula.

    There is no way back: ``--to json`` has texts as they are.
    """
    if not isinstance(value, str):
        return csv_cell(str(value)) if isinstance(value, (list, dict, tuple)) else value
    text = visible(value, lines=False)
    return f"'{text}" if _FORMULA.match(value) and not _number(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python's own way to group digits


def _json(frame: pd.DataFrame, file: TextIO) -> None:
    """An array of objects, one a line; missing values are null."""
    between = "["
    for row in _rows(frame):
        finite = {name: None if _endless(value) else value for name, value in row.items()}
        file.write(f"{between}\n{json.dumps(finite, allow_nan=False)}".replace("\x7f", "\\u007f"))
        between = ","
    file.write("[]\n" if between == "[" else "\n]\n")


def _markdown(frame: pd.DataFrame, file: TextIO) -> None:
    """A pipe table; numbers to the right."""
    numbers = {name: _is_number(frame[name]) for name in frame.columns}
    names = [name if str(name).isidentifier() else _cell(str(name)) for name in frame.columns]
    lines = [names, ["---:" if numbers[name] else "---" for name in frame.columns]]
    lines += [[_cell(value) for value in row.values()] for row in _rows(frame)]
    for cells in lines:
        file.write(f"| {' | '.join(cells)} |\n")


def _latex(frame: pd.DataFrame, file: TextIO) -> None:
    """A booktabs table, to be set with ``\\usepackage{booktabs}``."""
    columns = "".join("r" if _is_number(frame[name]) else "l" for name in frame.columns)
    names = [_plain(str(name)) for name in frame.columns]
    shown = pd.DataFrame([list(map(_plain, row.values())) for row in _rows(frame)], columns=names, dtype=object)
    file.write(shown.to_latex(index=False, escape=True, column_format=columns))


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of Python's own values; None where there is none."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(map(str, frame.columns), values, strict=True))


def _endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_number(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _plain(value: Any) -> str:
    """A value in one line, as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else visible(_BROKEN.sub(" ", str(value)))


def _cell(value: Any) -> str:
    """The same where a pipe would end the cell, and a tag be taken for one."""
    return re.sub(r"([\\|<`*_\[\]])", r"\\\1", _plain(value)) if isinstance(value, str) else _plain(value)


FORMATS: Mapping[str, Callable[[pd.DataFrame, TextIO], None]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "latex": _latex,
}
