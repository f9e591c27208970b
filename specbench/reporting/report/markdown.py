"""A report as Markdown: the same tables, pictures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from specbench.reporting.report.document import (
    Block,
    Cell,
    Document,
    Figure,
    Section,
    Source,
    Table,
    Terms,
    Words,
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
    elif isinstance(block, Terms):
        yield from ("| word | definition |", "| --- | --- |")
        yield from (f"| {_in_table(word)} | {_in_table(means)} |" for word, means in block.meanings.items())
        yield ""
    elif isinstance(block, Words):
        mark = "" if block.kind == "text" else "* "
        # Definitions keep their `code`; sentences about runs may hold anything.
        yield from (f"{mark}{line if block.kind == 'text' else _plain(line)}" for line in block.lines)
        yield ""


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"**{_plain(table.title)}**", "")
    for part, rows in groupby(table.rows, lambda row: row.part):
        if part:
            yield from (_plain(part), "")
        yield f"| {' | '.join(_cell_text(column.title) for column in table.columns)} |"
        yield f"| {' | '.join('---' if column.words else '---:' for column in table.columns)} |"
        for row in rows:
            yield f"| {' | '.join(_cell(cell) for cell in row.cells)} |"
        yield ""
    yield from _source(table.source)


def _source(source: Source) -> Iterator[str]:
    runs = f" Runs: {', '.join(source.runs)}." if source.runs else ""
    yield from (f"_{_plain(source.formula)}{_plain(runs)}_", "")


def _cell(cell: Cell) -> str:
    return _cell_text(f"{cell.text} {cell.under}".strip())


def _cell_text(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _in_table(text: str) -> str:
    """A definition, whose backticks are its own."""
    return " ".join(text.split()).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text that is nothing but text: no markup of Markdown or HTML, on one line."""
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", " ".join(text.split()))
