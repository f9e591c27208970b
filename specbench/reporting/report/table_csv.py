"""A report's figures as CSV in long format: a line per cell that holds a figure, units in the names."""

from __future__ import annotations

import csv
import io

from specbench.reporting.report.document import DASH, Document, printable

FIELDS = ("table", "run", "row", "figure", "value", "low", "high", "text")


def to_csv(document: Document) -> str:
    """Every table of the report, those behind its pictures too; table, run, row and figure together are unique."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    for section in document.sections:
        for table in section.tables():
            for row in table.rows:
                pairs = list(zip(table.columns, row.cells, strict=True))
                name = row.key or row.method or row.cells[0].text
                for column, cell in pairs:
                    figures = [_digits(value) for value in (cell.value, cell.low, cell.high)]
                    if cell.text not in ("", DASH):
                        # Of a figure the words would only say it again, with fewer digits.
                        text = f"{cell.text} {cell.under}".strip() if cell.value is None else ""
                        writer.writerow([table.name, row.run, name, column.key, *figures, text])
    return printable(file.getvalue())


def _digits(value: float | None) -> str:
    """Six digits: more were not measured, and the seventh may differ between machines."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
