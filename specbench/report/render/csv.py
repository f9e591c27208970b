"""Render every table of a document as CSV, a line per figure."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from specbench.common import escape_control
from specbench.report.document import DASH, Document

FIELDS = ("table", "run", "row", "figure", "value", "low", "high", "text")
_FORMULA = re.compile(
    r"[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)  # text that a spreadsheet would compute, including full-width signs


def to_csv(document: Document) -> str:
    """Every table of the report, including those of its charts; (table, run, row, figure) is unique."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    tables = [table.on("page") for section in document.sections for table in section.tables()]
    for table, row in [(each, row) for each in tables for row in each.rows]:
        of_row = [csv_cell(name) for name in (table.name, row.run, row.key or row.method or row.cells[0].text)]
        for column, cell in zip(table.columns, row.cells, strict=True):
            figures = [_digits(value) for value in (cell.value, cell.low, cell.high)]
            if cell.text not in ("", DASH):
                # The text of a figure would repeat its value with fewer digits.
                text = f"{cell.text} {cell.under}".strip() if cell.value is None else ""
                writer.writerow([*of_row, csv_cell(column.key), *figures, csv_cell(text)])
        if row.url:
            writer.writerow([*of_row, "url", "", "", "", csv_cell(row.url)])
    return file.getvalue()


def _digits(value: float | None) -> str:
    """Format with six digits; further digits may differ between machines."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def csv_cell(value: Any) -> Any:
    """Escape a value for CSV: text becomes one visible line, with an apostrophe if a spreadsheet would compute it.

    This loses information; ``--to json`` keeps texts unchanged.
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
