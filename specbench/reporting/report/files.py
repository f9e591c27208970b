"""The files of a report."""

from __future__ import annotations

from pathlib import Path

from specbench.files import check_writable, write_atomic, write_text_atomic
from specbench.reporting.report.document import Document, printable
from specbench.reporting.report.html import to_html
from specbench.reporting.report.markdown import to_markdown
from specbench.reporting.report.table_csv import to_csv

PAGE, TEXT, TABLE, PICTURES = "report.html", "report.md", "report.csv", "report_pictures"


def write_report(document: Document, out: Path) -> Path:
    """Writes ``report.html``, ``report.md`` with ``report_pictures/``, and ``report.csv`` into a folder.

    Equal documents give equal bytes. Pictures of an earlier report in the same folder are removed.

    Returns:
        The page.

    Raises:
        EnvironmentRefused: the disk is full or the folder cannot be written.
    """
    check_writable(out / PICTURES)
    figures = {figure.file: figure for section in document.sections for figure in section.figures()}
    for file in (out / PICTURES).iterdir():
        if file.suffix in (".svg", ".png") and file.name not in figures:
            file.unlink()
    for name, figure in figures.items():
        content = figure.content
        write_atomic(out / PICTURES / name, printable(content).encode() if isinstance(content, str) else content)
    write_text_atomic(out / TEXT, to_markdown(document, PICTURES))
    write_text_atomic(out / TABLE, to_csv(document))
    write_text_atomic(out / PAGE, to_html(document))
    return out / PAGE
