"""Format-independent content of commands and reports: text, tables and figures, each with its runs and formula.

It consists of plain text and numbers, so that terminal, HTML, Markdown and CSV show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from specbench.common import escape_control

Tone = Literal["", "good", "bad", "faint"]
Medium = Literal["", "page", "terminal"]

DASH = "–"


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, and its value with interval for machine-readable files.

    ``under`` is a second, smaller line; a terminal shows ``line`` instead of both (default: the text). ``tone`` is the
    colour, which never carries a meaning alone; ``strong`` is bold.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tone: Tone = ""
    under: str = ""
    line: str = ""
    strong: bool = False


NOTHING = Cell(DASH, tone="faint")


@dataclass(frozen=True)
class Column:
    """A column; ``key`` is its name in CSV, with its unit. Words are aligned left, figures right.

    Attributes:
        only: the one medium that shows it; empty: all.
        note: what the heading means, for the line under the table.
        optional: a terminal leaves the column out if no row has a figure.
        once: a terminal leaves a cell empty if it repeats the cell above.
        short: heading in a terminal.
        group: what the title begins with in a group of columns, for a format with headings over several columns.
    """

    key: str
    title: str
    words: bool = False
    only: Medium = ""
    note: str = ""
    optional: bool = False
    once: bool = False
    short: str = ""
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A row; consecutive rows of one ``part`` get it as a heading.

    ``key`` is its name in CSV (default: the method, or the text of the first cell); ``url`` is its source, for CSV.
    """

    cells: Sequence[Cell]
    run: str = ""
    method: str = ""
    part: str = ""
    strong: bool = False
    key: str = ""
    url: str = ""
    only: Medium = ""


@dataclass(frozen=True)
class Source:
    """Where figures come from: ids of runs, and how the figures were computed."""

    runs: Sequence[str] = ()
    formula: str = ""


@dataclass(frozen=True)
class Table:
    """A table for every medium; ``name`` is its name in CSV.

    Attributes:
        folded: a page shows only the title until the reader opens it.
        short: heading of the first column in a terminal, which replaces the title.
        alike: a terminal joins rows that differ only in their first cell.
        only: the one medium that shows it; empty: all.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    source: Source = Source()
    folded: bool = False
    short: str = ""
    alike: bool = False
    only: Medium = ""

    def on(self, medium: Medium) -> Table:
        """The table with the columns and rows of one medium; the columns' notes are added to the source."""
        rows = [row for row in self.rows if row.only in ("", medium)]
        there = [at for at, column in enumerate(self.columns) if column.only in ("", medium)]
        if medium == "terminal":
            empty = {at for at in there if self.columns[at].optional and all(row.cells[at] == NOTHING for row in rows)}
            there = [at for at in there if at not in empty]
        columns = [self.columns[at] for at in there]
        rows = [replace(row, cells=[row.cells[at] for at in there]) for row in rows]
        notes = [self.source.formula, *(column.note for column in columns)]
        source = replace(self.source, formula=" ".join(note for note in notes if note))
        return replace(self, columns=columns, rows=rows, source=source)


@dataclass(frozen=True)
class Figure:
    """A chart: an SVG document or the bytes of a PNG, with a text alternative and a table of the same figures.

    ``name`` is the file name without suffix, unique in a report; ``natural`` keeps the drawn size and scrolls.
    """

    name: str
    title: str
    content: str | bytes
    says: str
    source: Source
    data: Table | None = None
    wide: bool = False
    natural: bool = False

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.{'svg' if isinstance(self.content, str) else 'png'}"


@dataclass(frozen=True)
class Title:
    """The title above a terminal's tables: a name, further text on the same line, and further lines.

    A line that begins with ``!`` is a warning.
    """

    name: str
    about: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Words:
    """Sentences, one per line."""

    lines: Sequence[str]
    kind: Literal["text", "notes", "warning"] = "text"


@dataclass(frozen=True)
class Terms:
    """Words and their definitions."""

    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Piece:
    """A token of a trace: text, origin and CSS class; a sign that the trace adds has no origin."""

    text: str
    origin: str
    look: str


@dataclass(frozen=True)
class Line:
    """A step of a trace, counted from 1; 0 is the prefill."""

    number: int
    rows: int | None
    pieces: Sequence[Piece]
    rejected: Sequence[Piece] = ()


@dataclass(frozen=True)
class Origin:
    """An origin of tokens: its letter for output without colours, its CSS class, and its meaning."""

    letter: str
    look: str
    meaning: str


@dataclass(frozen=True)
class Trace:
    """One generation, a line per step; ``origins`` is the legend. It is folded unless ``open``."""

    title: str
    summary: str
    lines: Sequence[Line]
    origins: Mapping[str, Origin]
    source: Source
    open: bool = False


@dataclass(frozen=True)
class GridLine:
    """A line of a grid: a forward, counted from 1, with (text, mark) of consecutive columns from ``first`` on."""

    number: int
    emitted: int
    first: int
    cells: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A trajectory: a line per forward with its input tokens, a column per position of the answer.

    ``plain`` holds the same as lines of text, for formats without wide tables.
    """

    title: str
    summary: str
    answer: Sequence[str]
    states: Sequence[GridLine]
    legend: Mapping[str, tuple[str, str]]
    plain: Sequence[str]
    source: Source
    open: bool = False


@dataclass(frozen=True)
class Mark:
    """Another row of a finding: name, figure and tone."""

    name: str
    text: str
    tone: Tone = ""

    @property
    def line(self) -> str:
        """Name and figure as text."""
        return f"{self.name} {self.text}"


@dataclass(frozen=True)
class Finding:
    """The result of one run in short: one number, its meaning, its interval and the accuracy."""

    on: str
    figure: str
    tone: Tone
    claim: str
    lines: Mapping[str, str]
    marks: Sequence[Mark]
    links: Mapping[str, str]


@dataclass(frozen=True)
class Findings:
    """Findings, shown side by side."""

    findings: Sequence[Finding]
    source: Source


@dataclass(frozen=True)
class Page:
    """Another page of the report; ``name`` is its file name."""

    name: str
    content: str


Block = Title | Words | Terms | Table | Figure | Trace | Grid | Findings


@dataclass(frozen=True)
class Section:
    """A heading with its blocks, followed by its subsections."""

    id: str
    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    under: str = ""

    def tables(self) -> Iterator[Table]:
        """Every table of the section, including the tables of its figures."""
        for block in self.blocks:
            if isinstance(block, Table):
                yield block
            elif isinstance(block, Figure) and block.data is not None:
                yield block.data
        for section in self.sections:
            yield from section.tables()

    def figures(self) -> Iterator[Figure]:
        """Every figure of the section."""
        for block in self.blocks:
            if isinstance(block, Figure):
                yield block
        for section in self.sections:
            yield from section.figures()


@dataclass(frozen=True)
class Document:
    """A whole report with the pages that it links to."""

    title: str
    under: str
    sections: Sequence[Section]
    pages: Sequence[Page] = ()


def seen_on(medium: Medium, blocks: Iterable[Block]) -> list[Block]:
    """The blocks that a medium shows."""
    return [block for block in blocks if not isinstance(block, Table) or block.only in ("", medium)]


def printable(text: str) -> str:
    """Escape invisible characters, as in the terminal.

    This includes characters that change the direction of the text that follows, which may be our own.
    """
    return escape_control(text)


def parts(text: str) -> list[tuple[str, bool]]:
    """Split text at backticks: (piece, whether it is code)."""
    found = text.split("`")
    if len(found) % 2 == 0:  # an unpaired backtick stays text
        found[-2:] = ["`".join(found[-2:])]
    return [(piece, at % 2 == 1) for at, piece in enumerate(found) if piece]
