"""How text from files, models and plug-ins looks wherever it is shown, and the console of the terminal.

:func:`visible` writes control and invisible characters as escapes and treats nothing as markup. rich is imported on
use.
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
# What a terminal obeys, what turns text round, what has no width, and halves of characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
_WIDEST = 10_000  # columns; no terminal has more
_LONGEST = 50_000  # letters of one text on the terminal; laying out a damaged file's ten million takes minutes
_CUT = "… (too long to show)"


def escape_control(text: str, lines: bool = True) -> str:
    """A text with what cannot be seen written as a Python literal has it: ``\\x1b``, ``\\u202e``.

    Args:
        lines: leaves line breaks and tabs as they are.
    """
    text = _HIDDEN.sub(_literal, text)
    return text if lines else _BROKEN.sub(_literal, text)


def _literal(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """The console of a stream: what it is given to print is shown by :func:`visible`, and is never markup.

    Styles are rich's and those of our own code.
    """
    environment = {name: text for name, text in os.environ.items() if name not in SIZES or is_size(text)}
    return _shown()(
        stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, _environ=environment
    )  # fmt: skip


#: Variables that may say how large the terminal is.
SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


def is_size(text: str) -> bool:
    """Whether what one of them says is a size: rich fails at others, and pads each line to what is too large."""
    return text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _WIDEST


@cache
def _shown() -> type[Console]:
    """Made when it is needed: importing rich takes longer than many a command."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Shown(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command ends well; rich's own way is an exit with 1

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(
                _bounded(escape_control(_bounded(text))), **how
            )  # here for the width that it takes

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
    """A text with its styles where they were."""
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
