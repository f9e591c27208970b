"""The code in a model's text. Regular expressions only: hostile text is not parsed in this process."""

from __future__ import annotations

import re


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
