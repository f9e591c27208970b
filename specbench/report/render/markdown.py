"""Render a document as Markdown, in GitHub's dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from specbench.report.document import Document, Piece, Table, Trace, parts, printable
from specbench.report.render.html import template


def to_markdown(document: Document, pictures: str) -> str:
    """Return the report; ``pictures`` is the folder of its charts, relative to the file."""
    return printable(_template().render(document=document, pictures=pictures).rstrip() + "\n")


def table_markdown(table: Table) -> str:
    """Return one table."""
    return printable(str(_template().make_module({"document": Document("", "", [])}).table(table)).strip() + "\n")


def _template() -> Any:
    filters: dict[str, Callable[..., Any]] = {
        "coded": _coded,
        "fenced": _fenced,
        "kind": lambda block: type(block).__name__,
        "marked": _marked,
        "plain": _plain,
    }
    return template("report.md.jinja", filters, trim_blocks=True)


def _marked(pieces: Sequence[Piece], trace: Trace) -> str:
    """Tokens with a letter for their origin, as in a terminal without colours."""
    found = []
    for origin, some in groupby(pieces, lambda piece: piece.origin):
        text = "│".join(piece.text for piece in some)
        letter = trace.origins[origin].letter if origin else ""
        found.append(f"⟨{letter}:{text}⟩" if letter else text.replace("│", ""))
    return _fenced("".join(found))


def _fenced(line: str) -> str:
    """Replace fences in a line, which would end the block of code."""
    return line.replace("```", "ˋˋˋ")


def _coded(text: str) -> str:
    """Escape text but keep code between backticks."""
    return "".join(f"`{' '.join(piece.split())}`" if code else _escaped(piece) for piece, code in parts(text))


def _plain(text: str) -> str:
    """Escape text and put it on one line."""
    return _escaped(text).strip()


def _escaped(text: str) -> str:
    """Escape Markdown and HTML markup, and replace line breaks."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", re.sub(r"\s+", " ", text))
