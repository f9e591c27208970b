"""What a command or a page shows, before it has a format: text, tables and figures, each with its runs and formula.

Everything a format needs is here as plain text and numbers, so that terminal, HTML, Markdown and CSV say the same.
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
    """One place of a table: its text, and the figure with its interval for files that programs read.

    ``under`` is a second, smaller line; a terminal, which has no room for one, shows ``line`` (default: the text).
    ``tone`` is how it looks, never the only bearer of a meaning.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tone: Tone = ""
    under: str = ""
    line: str = ""


NOTHING = Cell(DASH, tone="faint")


@dataclass(frozen=True)
class Column:
    """A column; ``key`` is its name in CSV, with its unit. Words are set from the left, figures from the right.

    Attributes:
        only: the one medium that has room for it; empty: all have.
        note: what its heading means, for the line under the table.
        optional: a terminal leaves it out where no row has a figure.
        once: a terminal leaves a cell empty that says what the one above it says.
        short: its heading in a terminal.
    """

    key: str
    title: str
    words: bool = False
    only: Medium = ""
    note: str = ""
    optional: bool = False
    once: bool = False
    short: str = ""


@dataclass(frozen=True)
class Row:
    """A row. The first ones of each ``part`` have it as a heading above them.

    ``key`` is its name in CSV (default: its method, or the text of its first cell); ``url`` its source, for CSV.
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
    """Where figures come from: ids of runs, and how they were worked out."""

    runs: Sequence[str] = ()
    formula: str = ""


@dataclass(frozen=True)
class Table:
    """A table, for every medium; ``name`` is its name in CSV.

    Attributes:
        folded: a page shows its title until it is opened.
        short: heading of its first column in a terminal, where it stands for the title.
        alike: a terminal joins rows that differ in their first cell alone.
        only: the one medium that shows it; empty: all do.
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
        """The table as one medium shows it: its columns and rows, with the notes of these columns in its source."""
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
    """A picture: an SVG document or the bytes of a PNG, with a text alternative and a table of the same figures.

    ``name`` is its file's, without suffix, unique in a report; ``natural`` keeps the size as drawn, and scrolls.
    """

    name: str
    title: str
    content: str | bytes
    says: str
    source: Source
    behind: Table | None = None
    wide: bool = False
    natural: bool = False

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.{'svg' if isinstance(self.content, str) else 'png'}"


@dataclass(frozen=True)
class Title:
    """What stands over a terminal's tables: a name, what else is on its line, and further lines.

    A line that begins with ``!`` is a warning.
    """

    name: str
    about: str = ""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Words:
    """Sentences, a line each."""

    lines: Sequence[str]
    kind: Literal["text", "notes", "warning"] = "text"


@dataclass(frozen=True)
class Terms:
    """Words and what they mean."""

    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Piece:
    """A token of a trace: its text, how it came, and how that looks; no origin is a sign of the trace's own."""

    text: str
    origin: str
    look: str


@dataclass(frozen=True)
class Line:
    """A step of a trace, from 1; 0 is the prompt's forward."""

    number: int
    rows: int | None
    pieces: Sequence[Piece]
    rejected: Sequence[Piece] = ()


@dataclass(frozen=True)
class Origin:
    """A way of coming: its letter where there are no colours, its look, and what it means."""

    letter: str
    look: str
    meaning: str


@dataclass(frozen=True)
class Trace:
    """One generation, a line for each step; ``origins`` is its legend. It is folded unless it is ``open``."""

    title: str
    said: str
    lines: Sequence[Line]
    origins: Mapping[str, Origin]
    source: Source
    open: bool = False


@dataclass(frozen=True)
class GridLine:
    """A line of a grid: a forward, from 1, with (text, mark) of neighbouring columns from ``first`` on."""

    number: int
    emitted: int
    first: int
    cells: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A trajectory: what each forward was fed, a line each, at the positions of the answer, a column each.

    ``plain`` is the same as lines of text, for formats without tables of many columns.
    """

    title: str
    said: str
    answer: Sequence[str]
    states: Sequence[GridLine]
    legend: Mapping[str, tuple[str, str]]
    plain: Sequence[str]
    source: Source
    open: bool = False


@dataclass(frozen=True)
class Mark:
    """A name with its figure, and how it did: one of the rows behind a finding."""

    name: str
    text: str
    tone: Tone = ""

    @property
    def line(self) -> str:
        """Both as words."""
        return f"{self.name} {self.text}"


@dataclass(frozen=True)
class Finding:
    """What one run found, for people who read nothing else: one number, what it says, and how sure and right it is."""

    on: str
    figure: str
    tone: Tone
    claim: str
    lines: Mapping[str, str]
    marks: Sequence[Mark]
    links: Mapping[str, str]


@dataclass(frozen=True)
class Findings:
    """Findings side by side."""

    findings: Sequence[Finding]
    source: Source


@dataclass(frozen=True)
class Page:
    """Another page that goes with the report; ``name`` is its file's."""

    name: str
    content: str


Block = Title | Words | Terms | Table | Figure | Trace | Grid | Findings


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; its own sections come last."""

    id: str
    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    under: str = ""

    def tables(self) -> Iterator[Table]:
        """Every table in here, those behind figures too."""
        for block in self.blocks:
            if isinstance(block, Table):
                yield block
            elif isinstance(block, Figure) and block.behind is not None:
                yield block.behind
        for section in self.sections:
            yield from section.tables()

    def figures(self) -> Iterator[Figure]:
        """Every figure in here."""
        for block in self.blocks:
            if isinstance(block, Figure):
                yield block
        for section in self.sections:
            yield from section.figures()


@dataclass(frozen=True)
class Document:
    """A whole report, and the pages that it links to."""

    title: str
    under: str
    sections: Sequence[Section]
    pages: Sequence[Page] = ()


def seen_on(medium: Medium, blocks: Iterable[Block]) -> list[Block]:
    """The blocks that a medium shows."""
    return [block for block in blocks if not isinstance(block, Table) or block.only in ("", medium)]


def printable(text: str) -> str:
    """Text that every file can hold and every reader sees: what cannot be seen is written out, as in the terminal.

    So is what turns the direction of the text behind it, which may be our own.
    """
    return escape_control(text)


def parts(text: str) -> list[tuple[str, bool]]:
    """A text's pieces, and whether each stands between backticks and so is code."""
    found = text.split("`")
    if len(found) % 2 == 0:  # the last backtick opens nothing
        found[-2:] = ["`".join(found[-2:])]
    return [(piece, at % 2 == 1) for at, piece in enumerate(found) if piece]
