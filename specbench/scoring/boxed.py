"""The ``\\boxed{…}`` answer of a text."""

from __future__ import annotations

import re

# A box's start, an escaped character (a brace that is printed closes nothing), or a brace.
_TOKEN = re.compile(r"(?P<box>\\f?boxed\s*\{)|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\\boxed\s+([^\s${}\\]+)")  # MATH's own solutions leave the braces out at times


def last_box(text: str) -> str | None:
    """What is in the last box whose braces are closed; None when there is none.

    Of nested boxes it is the inner one. A box that the token budget cut off counts for nothing.
    """
    last: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # where a box's content starts, None for any other brace
    for token in _TOKEN.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and (last is None or start > last[0]):
                last = start, token.start()
    if last:
        return text[slice(*last)].strip()
    bare = _BARE.findall(text)
    return bare[-1].rstrip(".,;:") if bare else None
