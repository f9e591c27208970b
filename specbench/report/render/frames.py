"""Export data frames of runs as CSV, JSON, Markdown or LaTeX."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO

import pandas as pd

from specbench.analysis import load, load_methods, load_positions
from specbench.common import (
    UsageError,
    check_writable,
    escape_control,
    one_line,
    unknown_name,
    write_failed,
    write_text_atomic,
)
from specbench.report.document import Document, Section, Table
from specbench.report.render.csv import csv_cell, to_csv
from specbench.report.render.html import to_html
from specbench.report.render.latex import to_latex
from specbench.report.render.markdown import table_markdown

_DIGITS = 6  # in Markdown and LaTeX; CSV and JSON have all digits
_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # would break a row of a Markdown or LaTeX table


def export_tables(
    runs: Sequence[Path],
    to: str,
    out: Path | None = None,
    *,
    rows: Literal["requests", "methods", "positions"] = "requests",
    columns: Sequence[str] = (),
) -> None:
    """Write runs and sweeps as one table in long format, in one of the :data:`EXPORT_FORMATS`.

    Args:
        out: a file; None is stdout.
        rows: what has a row of its own: a request, a method, or a method's window of the answer.
        columns: only these columns; empty: all.
    """
    if to not in EXPORT_FORMATS:
        raise unknown_name("format", to, EXPORT_FORMATS, "in --to")
    if out is not None:
        check_writable(out.parent)
    frame = {"requests": load, "methods": load_methods, "positions": load_positions}[rows](*runs)
    for name in columns:
        if name not in frame.columns:
            raise _unknown_column(name, frame.columns)
    frame = frame[list(dict.fromkeys(columns))] if columns else frame
    if out is None:
        EXPORT_FORMATS[to](frame, sys.stdout)
        return
    text = io.StringIO()
    EXPORT_FORMATS[to](frame, text)
    _write(text.getvalue(), out)


def export_table(table: Table, to: str, out: Path | None = None) -> None:
    """Write a table to a file or to stdout: a page, Markdown, LaTeX, or CSV with a line per figure."""
    if to not in TABLE_FORMATS:
        raise unknown_name("format", to, TABLE_FORMATS, "in --to")
    text = TABLE_FORMATS[to](table)
    if out is None:
        sys.stdout.write(text)
        return
    check_writable(out.parent)
    _write(text, out)


def _document(table: Table) -> Document:
    return Document(table.title or "Table", "", [Section("table", "", [replace(table, title="")])])


TABLE_FORMATS: Mapping[str, Callable[[Table], str]] = {
    "csv": lambda table: to_csv(_document(table)),
    "html": lambda table: to_html(_document(table)),
    "md": table_markdown,
    "latex": to_latex,
}


def _write(text: str, out: Path) -> None:
    if out.exists() and not out.is_file():  # a pipe or a device, which an atomic write would replace by a file
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise write_failed(error, out) from error
        return
    write_text_atomic(out.resolve(), text)


#: Other names of columns, with letters only.
_MEANT = {
    "tokens_per_forward": ("acceptance", "acceptancerate", "acceptancelength", "accepted", "acceptedlength",
                           "meanacceptedlength", "meanacceptedtokens", "mat", "mal", "tau", "tpf"),
    "decode_tok_s": ("tps", "toks", "tokenspersecond", "throughput", "speed"),
    "latency_s": ("latency", "e2e", "e2elatency"),
    "ttft_s": ("ttft", "timetofirsttoken"),
    "tpot_s": ("tpot", "itl", "intertokenlatency"),
    "peak_memory_bytes": ("memory", "gpumemory", "peakmemory", "vram"),
    "output_tokens": ("tokens", "completiontokens"),
}  # fmt: skip


def column_meant(name: str, columns: Iterable[str]) -> str:
    """The column of a figure by its name or a usual name of it, such as TPF; UsageError if there is none."""
    known = list(columns)
    words = "".join(each for each in name.lower() if each.isalnum())
    meant = (column for column, others in _MEANT.items() if words in others and column in known)
    found = name if name in known else next(meant, name)
    if found not in known:
        raise unknown_name("figure", one_line(name, 80), known, "in --value")
    return found


_QUANTILE = re.compile(r"(.*?)_?p(\d{1,2})(_.*)?|(.*?)_?percentile(.*)")


def _unknown_column(name: str, columns: Iterable[str]) -> UsageError:
    """An error that suggests the intended column, or how to compute a quantile from a column."""
    known = list(columns)
    words, quantile = "".join(each for each in name.lower() if each.isalnum()), _QUANTILE.fullmatch(name.lower())
    if quantile:
        share = int(quantile[2] or 95) / 100
        column = next((each for each in ("ttft_s", "tpot_s") if each[:4] in words), "latency_s")
        how = f"specbench.load(RUN).groupby('method').{column}.quantile({share:g})"
        return UsageError(f"unknown column '{one_line(name, 80)}' in --columns; quantiles are computed: {how}")
    meant = next((column for column, others in _MEANT.items() if words in others and column in known), None)
    if meant is None:
        return unknown_name("column", name, known, "in --columns", see="without --columns the table has all")
    note = " (accepted drafts a forward, plus the target's own token)" if meant == "tokens_per_forward" else ""
    return UsageError(f"unknown column '{one_line(name, 80)}' in --columns; did you mean {meant}{note}?")


def _csv(frame: pd.DataFrame, file: TextIO) -> None:
    file.write(frame_csv(frame))


def frame_csv(frame: pd.DataFrame, float_format: str | None = None) -> str:
    """A data frame as CSV, safe to open in a spreadsheet; ``float_format`` such as ``%.6g``.

    RFC 4180 except for the line ends; missing values are empty, texts are escaped by :func:`csv_cell`.
    """
    safe = {at: frame.iloc[:, at] for at in range(frame.shape[1])}
    safe = {at: column if _plain_values(column) else column.map(csv_cell) for at, column in safe.items()}
    made = pd.DataFrame(safe, index=frame.index)
    made.columns = pd.Index([csv_cell(str(name)) for name in frame.columns])
    return str(made.to_csv(index=False, lineterminator="\n", float_format=float_format))


def _plain_values(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column))


def _json(frame: pd.DataFrame, file: TextIO) -> None:
    """An array of objects, one per line; missing values are null."""
    between = "["
    for row in _rows(frame):
        finite = {name: None if _endless(value) else value for name, value in row.items()}
        file.write(f"{between}\n{json.dumps(finite, allow_nan=False)}".replace("\x7f", "\\u007f"))
        between = ","
    file.write("[]\n" if between == "[" else "\n]\n")


def _markdown(frame: pd.DataFrame, file: TextIO) -> None:
    """A pipe table with numbers aligned right."""
    numbers = {name: _is_number(frame[name]) for name in frame.columns}
    names = [name if str(name).isidentifier() else _cell(str(name)) for name in frame.columns]
    lines = [names, ["---:" if numbers[name] else "---" for name in frame.columns]]
    lines += [[_cell(value) for value in row.values()] for row in _rows(frame)]
    for cells in lines:
        file.write(f"| {' | '.join(cells)} |\n")


def _latex(frame: pd.DataFrame, file: TextIO) -> None:
    """A booktabs table, which needs ``\\usepackage{booktabs}``."""
    columns = "".join("r" if _is_number(frame[name]) else "l" for name in frame.columns)
    names = [_plain(str(name)) for name in frame.columns]
    shown = pd.DataFrame([list(map(_plain, row.values())) for row in _rows(frame)], columns=names, dtype=object)
    file.write(shown.to_latex(index=False, escape=True, column_format=columns))


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of plain Python values; missing values are None."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(map(str, frame.columns), values, strict=True))


def _endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_number(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _plain(value: Any) -> str:
    """Format a value for people, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else escape_control(_BROKEN.sub(" ", str(value)))


def _cell(value: Any) -> str:
    """The same with Markdown and HTML characters escaped."""
    return re.sub(r"([\\|<`*_\[\]])", r"\\\1", _plain(value)) if isinstance(value, str) else _plain(value)


EXPORT_FORMATS: Mapping[str, Callable[[pd.DataFrame, TextIO], None]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "latex": _latex,
}
