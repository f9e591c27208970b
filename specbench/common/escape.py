"""Show text from files, models and plug-ins safely, and create the terminal's console.

:func:`escape_control` writes control and invisible characters as escapes; no text is treated as markup. rich is
imported when it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

_LINES = "\t\n"
_BROKEN = re.compile(f"[{_LINES}]")
# Control characters, direction marks, zero-width characters, and halves of surrogate pairs.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
_WIDEST = 10_000  # columns; no terminal has more
_LONGEST = 50_000  # most letters of one text on the terminal; laying out ten million of a damaged file takes minutes
_CUT = "… (too long to show)"


def escape_control(text: str, lines: bool = True) -> str:
    """Write invisible characters of a text as in a Python literal: ``\\x1b``, ``\\u202e``.

    Args:
        lines: leave line breaks and tabs unchanged.
    """
    text = _HIDDEN.sub(_literal, text)
    return text if lines else _BROKEN.sub(_literal, text)


def _literal(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console for a stream: printed text goes through :func:`escape_control` and is never markup.

    Styles are rich's and our own code's.
    """
    environment = {name: text for name, text in os.environ.items() if name not in SIZES or is_size(text)}
    return _shown()(
        stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, _environ=environment
    )  # fmt: skip


#: Environment variables with the size of the terminal.
SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


def is_size(text: str) -> bool:
    """Whether a variable's value is a size: rich fails on other values, and pads each line to a too large one."""
    return text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _WIDEST


@cache
def _shown() -> type[Console]:
    """Create the console when it is needed: importing rich takes longer than many commands."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Shown(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command ends normally; rich would exit with 1

        def render_str(self, text: str, **how: Any) -> Text:
            # Replaced here, where the width is computed.
            return super().render_str(_bounded(escape_control(_bounded(text))), **how)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            if isinstance(renderable, Text):
                short = _bounded(renderable.plain)
                renderable = _visible_text(renderable if len(short) == len(renderable) else Text(short))
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else escape_control(segment.text)
                yield segment if text == segment.text else Segment(text, segment.style)

    return Shown


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST + len(_CUT) else text[:_LONGEST] + _CUT


def _visible_text(text: Text) -> Text:
    """An escaped text with its styles in the same places."""
    from rich.text import Span

    if not (hidden := list(_HIDDEN.finditer(text.plain))):
        return text
    pieces = list(text.plain)
    for found in hidden:
        pieces[found.start()] = _literal(found)
    at = [0, *accumulate(map(len, pieces))]
    last = len(pieces)
    made = text.blank_copy("".join(pieces))
    made.spans = [Span(at[min(span.start, last)], at[min(span.end, last)], span.style) for span in text.spans]
    return made
