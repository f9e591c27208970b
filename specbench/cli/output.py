"""Where commands write: one console per stream, and JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.common import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def emit_json(data: Any) -> None:
    """Print one JSON document to stdout; NaN and infinity become null."""
    try:
        text = json.dumps(data, indent=2, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(data), indent=2, allow_nan=False)
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not abs(data) < float("inf") else data


def stdout() -> Console:
    """The console for data."""
    return console()


def stderr() -> Console:
    """The console for progress and notes."""
    return console(stderr=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str | None = None) -> Table:
    """A plain table whose last column takes the remaining width."""
    from rich import box
    from rich.table import Table

    # Two blanks between columns, because a terminal may have only 80.
    made = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left"
    )
    for at, column in enumerate(columns):
        last = at == len(columns) - 1
        narrowest = len(column) if last else None
        made.add_column(column, no_wrap=not last, overflow="fold" if last else "ellipsis", min_width=narrowest)
    for row in rows:
        made.add_row(*row)
    return made
