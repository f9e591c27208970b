"""Report files: one HTML page that needs nothing else, Markdown with pictures as files, and CSV with a line per figure.

The page has no script, no network, and every picture inside; it links to races, which are pages of their own.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specbench.common.files import check_writable, write_atomic, write_text_atomic
from specbench.report.document import DASH, Block, Document, Figure, Piece, Row, Trace, parts, printable
from specbench.report.render.frames import csv_cell

PAGE, TEXT, TABLE, PICTURES, RACES = "report.html", "report.md", "report.csv", "report_pictures", "report_races"


def write_report(document: Document, out: Path) -> Path:
    """Write ``report.html`` with ``report_races/``, ``report.md`` with ``report_pictures/``, and ``report.csv``.

    Returns the page. Equal documents give equal bytes. Pictures and races of an earlier report are removed.
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


def to_html(document: Document) -> str:
    """The page. What runs have written is text in it and never markup."""
    style = resources.files("specbench.report.render").joinpath("page.css").read_text(encoding="utf-8")
    template = environment(autoescape=True).get_template("page.html.jinja")
    return printable(template.render(document=document, style=Markup(style)))


def to_markdown(document: Document, pictures: str) -> str:
    """The report in GitHub's dialect; ``pictures`` is the folder of its pictures, as seen from the file."""
    template = environment(trim_blocks=True).get_template("report.md.jinja", globals={"pictures": pictures})
    return printable(template.render(document=document).rstrip() + "\n")


def environment(*, autoescape: bool = False, trim_blocks: bool = False) -> Environment:
    """Jinja with the pages' templates and filters."""
    made = Environment(
        loader=PackageLoader("specbench.report", "render"),
        autoescape=autoescape,
        trim_blocks=trim_blocks,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        "by_kind": _by_kind,
        "coded": _coded,
        "codes": _codes,
        "drawing": Markup,  # made by matplotlib, which escapes its words
        "fenced": _fenced,
        "groupby_run": _parts,
        "kind": lambda block: type(block).__name__,
        "marked": _marked,
        "plain": _plain,
    }
    return made


def _parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(part, list(some)) for part, some in groupby(rows, lambda row: row.part)]


def _by_kind(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Blocks of a kind that follow each other, by the name of the kind; small pictures are "cards"."""

    def kind(block: Block) -> str:
        return "cards" if isinstance(block, Figure) and not block.wide else type(block).__name__

    for name, some in groupby(blocks, kind):
        yield name, list(some)


def _codes(text: str) -> Markup:
    """Text with what stands between backticks set as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if code else escape(piece) for piece, code in parts(text)
    )


def _marked(pieces: Sequence[Piece], trace: Trace) -> str:
    """Tokens with letters for colours, as a terminal without them has it."""
    found = []
    for origin, some in groupby(pieces, lambda piece: piece.origin):
        text = "│".join(piece.text for piece in some)
        letter = trace.origins[origin].letter if origin else ""
        found.append(f"⟨{letter}:{text}⟩" if letter else text.replace("│", ""))
    return _fenced("".join(found))


def _fenced(line: str) -> str:
    """A line inside of a block of code, which a fence would end."""
    return line.replace("```", "ˋˋˋ")


def _coded(text: str) -> str:
    """Text whose code between backticks stays code."""
    return "".join(f"`{' '.join(piece.split())}`" if code else _escaped(piece) for piece, code in parts(text))


def _plain(text: str) -> str:
    """Text that is nothing but text, on one line."""
    return _escaped(text).strip()


def _escaped(text: str) -> str:
    """Without markup of Markdown or HTML, and without line breaks."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", re.sub(r"\s+", " ", text))


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
                of_row = [csv_cell(name) for name in (table.name, row.run, row.key or row.method or row.cells[0].text)]
                for column, cell in pairs:
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
