"""Render documents in a terminal, with tables that fit its width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from specbench.common import escape_control
from specbench.report.document import Block, Cell, Column, Row, Table, Title, Words

_STYLES: Mapping[str, str] = {"good": "green", "bad": "red", "faint": "dim", "": ""}
_KINDS: Mapping[str, str] = {"text": "", "notes": "dim", "warning": "yellow"}
_WORD, _LEAST = 12, 6  # minimum widths of a word column, tried in this order
_NAME = 16  # first columns up to this width, as for "llama.cpp:draft", are folded last
_BETWEEN = 2  # blanks between columns


def render_terminal(blocks: Sequence[Block]) -> RenderableType:
    """Blocks below each other, separated by an empty line; consecutive titles are not separated."""
    parts: list[RenderableType] = []
    for before, block in zip([None, *blocks], blocks, strict=False):
        together = isinstance(before, Title) and isinstance(block, Title)
        parts += [] if before is None or together else [Text()]
        parts += _rendered(block)
    return Group(*parts)


def _rendered(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Title):
        yield Text.assemble((block.name, "bold"), f" · {block.about}" if block.about else "")
        for line in block.lines:
            yield Text(line.removeprefix("!"), "yellow" if line.startswith("!") else "dim")
    elif isinstance(block, Words):
        for line in block.lines:
            yield Text(line, _KINDS[block.kind])
    elif isinstance(block, Table):
        if block.title and not block.short:
            yield Text(block.title, "bold")
        shown = block.on("terminal")
        yield _Grid(shown)
        if shown.source.formula:
            yield Text(shown.source.formula, "dim")
    else:
        raise TypeError(f"cannot show {type(block).__name__} in a terminal")


class _Grid:
    """A rich table whose columns share the width: words wrap first, figures only as a last resort."""

    def __init__(self, table: Table) -> None:
        self._table = table
        rows = _joined(table.rows) if table.alike else table.rows
        self._styles = ["bold" if row.strong else "" for row in rows]
        self._cells = [_texts(row, rows[at - 1] if at else None, table.columns) for at, row in enumerate(rows)]
        first, *others = table.columns
        self._heads = [table.short or first.short or first.title, *(column.short or column.title for column in others)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        widths = self._widths(options.max_width - _BETWEEN * (len(self._heads) - 1))
        for at, (head, column, width) in enumerate(zip(self._heads, self._table.columns, widths, strict=True)):
            left = at == 0 or column.words or any(row.cells[at].line for row in self._table.rows)
            grid.add_column(Text(head), justify="left" if left else "right", width=width, overflow="fold")
        for cells, style in zip(self._cells, self._styles, strict=True):
            grid.add_row(*cells, style=style)
        yield grid

    def _widths(self, room: int) -> list[int]:
        """Column widths; if space is short, words and headings wrap first, then names fold, then figures."""
        cells = [[row[at].plain for row in self._cells] for at in range(len(self._heads))]
        widths = [_widest([head, *texts], "\n") for head, texts in zip(self._heads, cells, strict=True)]
        names = widths[0] if widths[0] <= _NAME else 0
        for most, whole in ((_WORD, names), (_LEAST, names), (_LEAST, 0)):
            floors = []
            for at, (head, texts) in enumerate(zip(self._heads, cells, strict=True)):
                words = at == 0 or self._table.columns[at].words
                floors.append(
                    min(most, _widest([head, *texts])) if words else max(_widest([head]), _widest(texts, "\n"))
                )
            floors[0] = max(floors[0], whole)
            _shrink(widths, floors, room)
        _shrink(widths, [1] * len(widths), room)
        return widths


def _widest(texts: Sequence[str], between: str | None = None) -> int:
    """Width in terminal columns of the longest piece after splitting at ``between`` (default: whitespace)."""
    return max((cell_len(escape_control(piece)) for text in texts for piece in text.split(between)), default=0)


def _shrink(widths: list[int], floors: Sequence[int], room: int) -> None:
    """Shrink the widest columns, down to their floors, until all fit."""
    while sum(widths) > room and (free := [at for at, floor in enumerate(floors) if widths[at] > floor]):
        widths[max(free, key=lambda at: widths[at])] -= 1


def _texts(row: Row, above: Row | None, columns: Sequence[Column]) -> list[Text]:
    """A row's cells as Text, because content from runs may look like markup."""
    texts = [Text(_line(cell), "bold" if cell.strong else _STYLES[cell.tone]) for cell in row.cells]
    for at, column in enumerate(columns):
        if column.once and above is not None and above.cells[at].text == row.cells[at].text:
            texts[at] = Text()
    return texts


def _line(cell: Cell) -> str:
    return cell.line or cell.text


def _joined(rows: Sequence[Row]) -> list[Row]:
    """Join rows that differ only in their first cell."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(_line(cell) for cell in row.cells[1:]), []).append(row)
    return [
        Row([Cell(", ".join(_line(row.cells[0]) for row in alike)), *alike[0].cells[1:]]) for alike in found.values()
    ]
