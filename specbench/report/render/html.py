"""Render a document as one self-contained page, and load the templates of all pages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from specbench.report.document import Block, Document, Figure, Row, parts, printable


def to_html(document: Document) -> str:
    """Return the page; text from runs is always escaped."""
    filters: dict[str, Callable[..., Any]] = {
        "base64": lambda content: base64.b64encode(content).decode(),
        "by_kind": _by_kind,
        "codes": _codes,
        "drawing": Markup,  # from matplotlib, which escapes text
    }
    return printable(template("page.html.jinja", filters).render(document=document, style=asset("page.css")))


def template(name: str, filters: Mapping[str, Callable[..., Any]] | None = None, **how: Any) -> Any:
    """Load a template of this folder; HTML templates escape all values."""
    html = name.endswith(".html.jinja")
    made = Environment(
        loader=PackageLoader("specbench.report", "render"), autoescape=html, undefined=StrictUndefined,
        keep_trailing_newline=True, **how,
    )  # fmt: skip
    made.filters |= {"groupby_run": rows_by_part, **(filters or {})}
    return made.get_template(name)


def asset(*names: str) -> Markup:
    """Our own styles and scripts, unescaped."""
    folder = resources.files("specbench.report.render")
    return Markup("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))


def rows_by_part(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Group consecutive rows by heading."""
    return [(part, list(some)) for part, some in groupby(rows, lambda row: row.part)]


def _by_kind(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Group consecutive blocks of the same kind; small charts are "cards"."""

    def kind(block: Block) -> str:
        return "cards" if isinstance(block, Figure) and not block.wide else type(block).__name__

    for name, some in groupby(blocks, kind):
        yield name, list(some)


def _codes(text: str) -> Markup:
    """Escape text and set pieces between backticks as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if code else escape(piece) for piece, code in parts(text)
    )
