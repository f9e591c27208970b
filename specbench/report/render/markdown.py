"""Markdown: a document in GitHub's dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from specbench.report.document import Document, Piece, Trace, parts, printable
from specbench.report.render.html import template


def to_markdown(document: Document, pictures: str) -> str:
    """The report; ``pictures`` is the folder of its pictures, as seen from the file."""
    filters: dict[str, Callable[..., Any]] = {
        "coded": _coded,
        "fenced": _fenced,
        "kind": lambda block: type(block).__name__,
        "marked": _marked,
        "plain": _plain,
    }
    made = template("report.md.jinja", filters, trim_blocks=True)
    return printable(made.render(document=document, pictures=pictures).rstrip() + "\n")


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
