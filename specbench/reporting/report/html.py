"""A report as one HTML page that needs nothing else: no script, no network, every picture inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specbench.reporting.report.document import Block, Document, Figure, Row, parts, printable


def to_html(document: Document) -> str:
    """The page. What runs have written is text in it and never markup."""
    environment = Environment(
        loader=PackageLoader("specbench.reporting", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        "by_kind": _by_kind,
        "codes": _codes,
        "drawing": Markup,  # made by our own drawing, which escapes its words
        "groupby_run": _parts,
    }
    style = resources.files("specbench.reporting.report").joinpath("page.css").read_text(encoding="utf-8")
    template = environment.get_template("page.html.jinja")
    return printable(template.render(document=document, style=Markup(style)))


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
