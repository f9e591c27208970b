"""HTML: a document as one page that needs nothing else, and the templates of every page."""

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
    """The page. What runs have written is text in it and never markup."""
    filters: dict[str, Callable[..., Any]] = {
        "base64": lambda content: base64.b64encode(content).decode(),
        "by_kind": _by_kind,
        "codes": _codes,
        "drawing": Markup,  # made by matplotlib, which escapes its words
    }
    return printable(template("page.html.jinja", filters).render(document=document, style=asset("page.css")))


def template(name: str, filters: Mapping[str, Callable[..., Any]] | None = None, **how: Any) -> Any:
    """A template of this folder; those of HTML escape whatever they are given."""
    html = name.endswith(".html.jinja")
    made = Environment(
        loader=PackageLoader("specbench.report", "render"), autoescape=html, undefined=StrictUndefined,
        keep_trailing_newline=True, **how,
    )  # fmt: skip
    made.filters |= {"groupby_run": rows_by_part, **(filters or {})}
    return made.get_template(name)


def asset(*names: str) -> Markup:
    """Our own styles and scripts, as they are."""
    folder = resources.files("specbench.report.render")
    return Markup("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))


def rows_by_part(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows under each heading of a table."""
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
