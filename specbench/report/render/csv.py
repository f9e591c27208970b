"""CSV: every table of a document, a line for each figure."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from specbench.common import escape_control
from specbench.report.document import DASH, Document

FIELDS = ("table", "run", "row", "figure", "value", "low", "high", "text")
_FORMULA = re.compile(r"[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # what a spreadsheet computes, wide ones too


def to_csv(document: Document) -> str:
    """Every table of the report, those behind its pictures too; table, run, row and figure together are unique."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    tables = [table.on("page") for section in document.sections for table in section.tables()]
    for table, row in [(each, row) for each in tables for row in each.rows]:
        of_row = [csv_cell(name) for name in (table.name, row.run, row.key or row.method or row.cells[0].text)]
        for column, cell in zip(table.columns, row.cells, strict=True):
            figures = [_digits(value) for value in (cell.value, cell.low, cell.high)]
            if cell.text not in ("", DASH):
                # Of a figure the words would only say it again, with fewer digits.
                text = f"{cell.text} {cell.under}".strip() if cell.value is None else ""
                writer.writerow([*of_row, csv_cell(column.key), *figures, csv_cell(text)])
        if row.url:
            writer.writerow([*of_row, "url", "", "", "", csv_cell(row.url)])
    return file.getvalue()


def _digits(value: float | None) -> str:
    """Six digits: more were not measured, and the seventh may differ between machines."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def csv_cell(value: Any) -> Any:
    """A value as a cell of a CSV: of a text one visible line, with an apostrophe where it would be a formula.

    There is no way back: ``--to json`` has texts as they are.
    """
    if not isinstance(value, str):
        return csv_cell(str(value)) if isinstance(value, (list, dict, tuple)) else value
    text = escape_control(value, lines=False)
    return f"'{text}" if _FORMULA.match(value) and not _number(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python's own way to group digits
