"""Show a trajectory in the terminal: a row per state, a column per position, in windows that fit the width.

Each token follows the sign of its mark. Model text is escaped and cut to its cell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specbench.analysis import MARKS, Cell, CellMark, State, Trajectory
from specbench.report.answers.generation import EMPTY, escaped, prompt_name, shown

#: Sign of each mark.
SIGNS: Mapping[CellMark, str] = {
    "root": "»", "accepted": "✓", "stationary": "●", "right": "○", "misplaced": "≈", "wrong": "✗"
}  # fmt: skip

_STYLES: Mapping[CellMark, Style] = {
    "root": Style(bold=True), "accepted": Style(color="green"), "stationary": Style(color="cyan"),
    "right": Style(color="blue"), "misplaced": Style(color="magenta"), "wrong": Style(dim=True),
}  # fmt: skip
_HEAD = 10  # columns before the first cell: the forward, and what it emitted
_CELL, _WIDEST = 7, 14  # columns of a cell: sign, token, a blank


class TrajectoryGrid:
    """One request's trajectory, printed as a grid per window of positions, a legend and the totals."""

    def __init__(self, found: Trajectory) -> None:
        self._found = found
        self._begins = [state.cells[0].position for state in found.states]
        self._reach = list(accumulate((state.cells[-1].position for state in found.states), max))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _HEAD
        across = max(1, min(room // _CELL, len(self._found.ids)))
        width = max(2, min(room // across, _WIDEST))
        yield Text(escaped(title(self._found)), style="bold")
        for start in range(0, len(self._found.ids), across):
            yield Text()
            yield from self._window(range(start, min(start + across, len(self._found.ids))), width)
        yield Text()
        yield _legend(self._found)
        yield Text(totals_line(self._found))
        texts = chain(self._found.texts, (cell.text for state in self._found.states for cell in state.cells))
        signs = ["out: tokens emitted by a forward"]
        signs += [f"{EMPTY} a token without text of its own"] if not all(texts) else []
        yield Text("; ".join(signs) + ".", style="dim")

    def _window(self, positions: range, width: int) -> Iterator[Text]:
        yield _line("position", [(f"{at}", Style(dim=True)) for at in positions], width)
        yield _line("answer", [(shown(self._found.texts[at]), Style(bold=True)) for at in positions], width)
        first, end = bisect_left(self._reach, positions.start), bisect_left(self._begins, positions.stop)
        for begins, state in zip(self._begins[first:end], self._found.states[first:end], strict=True):
            there = state.cells[max(0, positions.start - begins) : positions.stop - begins]
            if cells := {cell.position: cell for cell in there}:
                head = f"{state.number:>4} {f'+{state.emitted}':>4}"
                yield _line(head, [_cell(cells.get(at)) for at in positions], width)


def title(found: Trajectory) -> str:
    """Title of a trajectory, not escaped."""
    name = prompt_name(found.prompt_id, found.repeat, found.turn)
    return f"{found.method} on {name}: {found.totals.forwards} states over {len(found.ids)} positions"


def totals_line(found: Trajectory) -> str:
    """The totals in one line."""
    totals = found.totals
    return (
        f"{totals.tokens_per_forward:.2f} tokens per forward; {totals.fast_forwards} of {totals.forwards} forwards are "
        f"fast-forwards, with {totals.fast_forwarded} tokens, {totals.fast_forwarded_per_forward:.2f} per forward; "
        f"stationary tokens: {totals.stationary}; misplaced: {totals.cells['misplaced']}."
    )


def _cell(cell: Cell | None) -> tuple[str, Style]:
    return (SIGNS[cell.mark] + shown(cell.text), _STYLES[cell.mark]) if cell else ("", Style())


def _line(head: str, cells: Sequence[tuple[str, Style]], width: int) -> Text:
    """A line of cells at their positions; long text is cut."""
    line = Text(set_cell_size(head, _HEAD), no_wrap=True, overflow="crop")
    for words, style in cells:
        line.append(set_cell_size(fit_width(words, width - 1), width), style)
    line.rstrip()
    return line


def fit_width(words: str, width: int) -> str:
    """Cut text to ``width`` terminal columns, with an ellipsis."""
    return words if cell_len(words) <= width else set_cell_size(words, width - 1).rstrip() + "…"


def _legend(found: Trajectory) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for justify in ("left", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(overflow="fold")
    for mark, meaning in MARKS.items():
        table.add_row(Text(SIGNS[mark], _STYLES[mark]), mark, str(found.totals.cells[mark]), meaning)
    return table


def plain_lines(found: Trajectory, states: Sequence[State], positions: range, width: int = _CELL) -> list[str]:
    """The grid of some states and positions as lines of text, for formats without colours."""
    lines = [_line("position", [(f"{at}", Style()) for at in positions], width)]
    lines.append(_line("answer", [(shown(found.texts[at]), Style()) for at in positions], width))
    for state in states:
        cells = {cell.position: cell for cell in state.cells}
        head = f"{state.number:>4} {f'+{state.emitted}':>4}"
        lines.append(_line(head, [_cell(cells.get(at)) for at in positions], width))
    return [line.plain for line in lines]
