"""A report as Markdown: the same tables, pictures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from specbench.reporting.report.document import (
    Block,
    Cell,
    Document,
    Figure,
    Piece,
    Section,
    Source,
    Table,
    Terms,
    Trace,
    Words,
    parts,
    printable,
)


def to_markdown(document: Document, pictures: str) -> str:
    """The report in GitHub's dialect; ``pictures`` is the folder of its pictures, as seen from the file."""
    lines = [f"# {_plain(document.title)}", "", _plain(document.under), ""]
    for section in document.sections:
        lines += _section(section, 2, pictures)
    return printable("\n".join(lines).rstrip() + "\n")


def _section(section: Section, level: int, pictures: str) -> Iterator[str]:
    yield from (f"{'#' * level} {_plain(section.title)}", "")
    if section.under:
        yield from (_plain(section.under), "")
    for block in section.blocks:
        yield from _block(block, pictures)
    for inner in section.sections:
        yield from _section(inner, level + 1, pictures)


def _block(block: Block, pictures: str) -> Iterator[str]:
    if isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Figure):
        yield from (f"![{_plain(block.says)}]({pictures}/{block.file})", "")
        if block.behind is not None:
            yield from _table(block.behind)
        else:
            yield from _source(block.source)
    elif isinstance(block, Trace):
        yield from _trace(block)
    elif isinstance(block, Terms):
        yield from ("| word | definition |", "| --- | --- |")
        yield from (f"| {_coded(word)} | {_coded(means)} |" for word, means in block.meanings.items())
        yield ""
    elif isinstance(block, Words):
        mark = "" if block.kind == "text" else "* "
        yield from (f"{mark}{_coded(line)}" for line in block.lines)
        yield ""


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"**{_plain(table.title)}**", "")
    for part, rows in groupby(table.rows, lambda row: row.part):
        if part:
            yield from (_plain(part), "")
        yield f"| {' | '.join(_plain(column.title) for column in table.columns)} |"
        yield f"| {' | '.join('---' if column.words else '---:' for column in table.columns)} |"
        for row in rows:
            yield f"| {' | '.join(_cell(cell) for cell in row.cells)} |"
        yield ""
    yield from _source(table.source)


def _trace(trace: Trace) -> Iterator[str]:
    """A trace with letters for colours, as a terminal without them has it."""
    yield from (f"**{_plain(trace.title)}**", "", f"{_plain(trace.said)}.", "", "```text")
    for line in trace.lines:
        # A fence in the text would end the block.
        said = "".join(_marked(line.pieces, trace)).replace("```", "ˋˋˋ")
        struck = "".join(_marked(line.rejected, trace)).replace("```", "ˋˋˋ")
        yield f"{line.number:>3} {said}" + (f"   ✗ {struck}" if struck else "")
    yield from ("```", "")
    for word, origin in trace.origins.items():
        yield f"* {_plain(f'{origin.letter}: {word}' if origin.letter else word)}: {_plain(origin.meaning)}"
    yield ""
    yield from _source(trace.source)


def _marked(pieces: Sequence[Piece], trace: Trace) -> Iterator[str]:
    for origin, some in groupby(pieces, lambda piece: piece.origin):
        text = "│".join(piece.text for piece in some)
        letter = trace.origins[origin].letter if origin else ""
        yield f"⟨{letter}:{text}⟩" if letter else text.replace("│", "")


def _source(source: Source) -> Iterator[str]:
    runs = f" Runs: {', '.join(source.runs)}." if source.runs else ""
    yield from (f"_{_plain(source.formula + runs)}_", "")


def _cell(cell: Cell) -> str:
    return _plain(f"{cell.text} {cell.under}")


def _coded(text: str) -> str:
    """Text whose code between backticks stays code."""
    return "".join(f"`{' '.join(piece.split())}`" if code else _escaped(piece) for piece, code in parts(text))


def _plain(text: str) -> str:
    """Text that is nothing but text, on one line."""
    return _escaped(text).strip()


def _escaped(text: str) -> str:
    """Without markup of Markdown or HTML, and without line breaks."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", re.sub(r"\s+", " ", text))
