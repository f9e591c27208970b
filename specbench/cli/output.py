"""Where commands write: one console per stream, and JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def emit_json(data: Any) -> None:
    """Prints one JSON document to stdout."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def stdout() -> Console:
    """The console for data."""
    return _console()


def stderr() -> Console:
    """The console for progress and notes."""
    return _console(stderr=True)


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command ends well; rich's own way is an exit with 1

    return Piped(stderr=stderr, highlight=False, markup=False)  # names and ids may look like markup


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str | None = None) -> Table:
    """A plain table whose last column takes what width is left."""
    from rich import box
    from rich.table import Table

    # Two blanks between columns: 80 columns are few.
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
    )
    for at, column in enumerate(columns):
        last = at == len(columns) - 1
        narrowest = len(column) if last else None
        made.add_column(column, no_wrap=not last, overflow="fold" if last else "ellipsis", min_width=narrowest)
    for row in rows:
        made.add_row(*row)
    return made
