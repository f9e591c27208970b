"""Formats: a table as CSV, JSON, Markdown or LaTeX for other tools. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import pandas as pd

_DIGITS = 6  # of figures that people read; CSV and JSON have all
_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # would end a row of a table for people


def write(frame: pd.DataFrame, to: str, file: TextIO) -> None:
    """Writes a table in one of the :data:`FORMATS`.

    Args:
        frame: as :func:`specbench.load` returns it.
        to: name of the format.
        file: what is written to.
    """
    FORMATS[to](frame, file)


def _csv(frame: pd.DataFrame, file: TextIO) -> None:
    """RFC 4180 but for its line ends; floats as they are, missing values empty."""
    frame.to_csv(file, index=False, lineterminator="\n")


def _json(frame: pd.DataFrame, file: TextIO) -> None:
    """An array of objects, one a line; missing values are null."""
    between = "["
    for row in _rows(frame):
        file.write(f"{between}\n{json.dumps(row, allow_nan=False)}")
        between = ","
    file.write("[]\n" if between == "[" else "\n]\n")


def _markdown(frame: pd.DataFrame, file: TextIO) -> None:
    """A pipe table; numbers to the right."""
    numbers = {name: _is_number(frame[name]) for name in frame.columns}
    lines = [list(frame.columns), ["---:" if numbers[name] else "---" for name in frame.columns]]
    lines += [[_cell(value) for value in row.values()] for row in _rows(frame)]
    for cells in lines:
        file.write(f"| {' | '.join(cells)} |\n")


def _latex(frame: pd.DataFrame, file: TextIO) -> None:
    """A booktabs table, to be set with ``\\usepackage{booktabs}``."""
    columns = "".join("r" if _is_number(frame[name]) else "l" for name in frame.columns)
    shown = pd.DataFrame([list(map(_plain, row.values())) for row in _rows(frame)], columns=frame.columns, dtype=object)
    file.write(shown.to_latex(index=False, escape=True, column_format=columns))


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of Python's own values; None where there is none."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(map(str, frame.columns), values, strict=True))


def _is_number(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _plain(value: Any) -> str:
    """A value in one line, as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else _BROKEN.sub(" ", str(value))


def _cell(value: Any) -> str:
    """The same where a pipe would end the cell, and a tag be taken for one."""
    return re.sub(r"([\\|<`*_\[\]])", r"\\\1", _plain(value)) if isinstance(value, str) else _plain(value)


FORMATS: Mapping[str, Callable[[pd.DataFrame, TextIO], None]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "latex": _latex,
}
