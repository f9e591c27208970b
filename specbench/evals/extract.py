"""Extraction: the code or the ``\\boxed{…}`` answer in a model's text.

Regular expressions only: hostile text is not parsed in this process.
"""

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


def fenced(text: str) -> str:
    """The code block of a chat answer whose opening fence was the prompt's prefill, up to its closing fence if any.

    A model that opens the fence once more, or closes it on the last line of code, is forgiven.
    """
    text = re.sub(r"\A\s*```\w*[ \t]*\n", "", text)
    return re.split(r"^```", text, maxsplit=1, flags=re.MULTILINE)[0].rstrip().removesuffix("```")


def first_block(text: str) -> str:
    """The first Python block of a chat answer that opens its own fences, else its first block, else all of it.

    An unclosed block ends with the text.
    """
    for language in (r"(?:python|py)\d?", r"\w*"):
        opening = re.search(rf"^[ ]{{0,3}}```{language}[ \t]*\n", text, re.MULTILINE | re.IGNORECASE)
        if opening:
            return fenced(text[opening.end() :])
    return text
