"""Files of a report: a self-contained HTML page, Markdown with chart files, and CSV with a line per figure.

The page contains every chart and has neither scripts nor network access; it links to the race pages.
"""

from __future__ import annotations

from pathlib import Path

from specbench.common import check_writable, write_atomic, write_text_atomic
from specbench.report.document import Document, printable
from specbench.report.render.csv import to_csv
from specbench.report.render.html import to_html
from specbench.report.render.markdown import to_markdown

PAGE, TEXT, TABLE, PICTURES, RACES = "report.html", "report.md", "report.csv", "report_pictures", "report_races"


def write_report(document: Document, out: Path) -> Path:
    """Write ``report.html`` with ``report_races/``, ``report.md`` with ``report_pictures/``, and ``report.csv``.

    Return the path of the page. Equal documents give equal bytes. Charts and races of an earlier report are removed.
    """
    check_writable(out / PICTURES)
    figures = {figure.file: figure for section in document.sections for figure in section.figures()}
    for file in (out / PICTURES).iterdir():
        if file.suffix in (".svg", ".png") and file.name not in figures:
            file.unlink()
    for name, figure in figures.items():
        content = figure.content
        write_atomic(out / PICTURES / name, printable(content).encode() if isinstance(content, str) else content)
    _write_pages(document, out / RACES)
    write_text_atomic(out / TEXT, to_markdown(document, PICTURES))
    write_text_atomic(out / TABLE, to_csv(document))
    write_text_atomic(out / PAGE, to_html(document))
    return out / PAGE


def _write_pages(document: Document, out: Path) -> None:
    pages = {page.name: page.content for page in document.pages}
    for file in out.glob("*.html"):
        if file.name not in pages:
            file.unlink()
    if pages:
        check_writable(out)
    for name, content in pages.items():
        write_text_atomic(out / name, content)
