"""Find the code or the ``\\boxed{…}`` answer in a model's text.

Fences are read by markdown-it-py, which follows CommonMark. Only block structure is parsed, so hostile text takes
linear time and is never executed.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

PYTHON = r"(?:i?python|py)[\d.]*"

IN_LANGUAGE, PLAIN, OTHER = "block in the language", "block without a language", "block in another language"
OPENED, UNPAIRED, WHOLE = "fence opened by the prompt", "text before an unpaired fence", "whole text"


@dataclass(frozen=True)
class Extracted:
    """The code found in an answer, and the rule that found it (one of the constants above, or a task's own)."""

    code: str
    rule: str


@dataclass(frozen=True)
class _Block:
    """A fenced block: its content without the containers' indentation, and the line on which its fence opens."""

    code: str
    language: str
    fence: str
    line: int
    closed: bool


@functools.cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # A tag such as </think> would hide the fence after it; inline content is not needed.
    parser = MarkdownIt("commonmark", {"maxNesting": 100})
    return parser.disable(["inline", "text_join", "reference", "html_block"])


def _blocks(text: str) -> list[_Block]:
    found = []
    for token in _markdown().parse(text):
        if token.type != "fence" or token.map is None:
            continue
        begin, end = token.map
        lines = token.content.count("\n") + (not token.content.endswith("\n") and token.content != "")
        language = re.match(r"\W*(\w*)", token.info)
        assert language is not None, "it matches nothing if need be"
        closed = end - begin - 1 > lines
        code = token.content.removesuffix("\n")
        found.append(_Block(code if closed else _cut(code, token.markup), language[1], token.markup, begin, closed))
    return found


def _cut(code: str, fence: str) -> str:
    """An unclosed block, cut at a fence that a person would read as its end: glued to the code, or followed by text."""
    glued = re.search(rf"^ {{0,3}}{fence}.*|(?<=\S)[ \t]*{fence}[ \t]*$", code, re.MULTILINE)
    return code[: glued.start()].removesuffix("\n") if glued else code


def reads_as_python(text: str) -> bool:
    """Whether the last line of a text may be Python: outside quotes, Python never has two names in a row."""
    line = text.rstrip().rpartition("\n")[2].strip()
    line = re.sub(r"\"[^\"]*\"|'[^']*'|#.*", "''", line)
    known = {*keyword.kwlist, *keyword.softkwlist}
    first = line.split(" ")[0].rstrip(":!?")
    pairs = re.findall(r"(?=\b([^\W\d]\w*)[ \t]+([^\W\d]\w*))", line)
    if line.endswith((":", "!", "?")) and first not in known:
        return False
    return bool(line) and all({*pair} & known for pair in pairs)


def fenced_code(
    text: str,
    language: str = PYTHON,
    *,
    opened: bool = False,
    last: bool = False,
    continues: Callable[[str], bool] = reads_as_python,
) -> Extracted | None:
    """The code in an answer's fences; None if no fence contains code.

    Blocks in the language are preferred to blocks without a language, and these to blocks in other languages. An
    unclosed block ends with the text. An unpaired fence without an info string closes the text before it, if that text
    reads as code.

    Args:
        text: the answer, with any kind of line ends; the code has "\\n".
        language: a pattern of the info string's first word, in lower case.
        opened: the prompt ended in an opening fence, so the answer begins inside the block, and the result is never
            None. A second opening fence by the model is ignored.
        continues: whether a text may be code.
    """
    text = re.sub(r"\r\n?", "\n", text)
    blocks = _blocks(text)
    before = "\n".join(text.split("\n")[: blocks[0].line]) if blocks else ""
    if opened:
        if not blocks or (before.strip() and not blocks[0].language):
            return Extracted(_blocks(f"```\n{text}")[0].code, OPENED)
        if before.strip() and continues(before):
            return Extracted(before, OPENED)
        return _best(blocks, language, last) or Extracted("", OPENED)
    if blocks and _is_unpaired(blocks[0]):
        glued = list(re.finditer(r"(?<=\S)[ \t]*(?:`{3,}|~{3,})[ \t]*[\w+-]*[ \t]*\n", before))
        if glued:
            return Extracted(before[glued[-1].end() :], UNPAIRED)
        if continues(before):
            return Extracted(before, UNPAIRED)
    return _best(blocks, language, last)


def continued_code(text: str) -> Extracted:
    """The code of an answer whose prompt ended in an opening fence."""
    found = fenced_code(text, opened=True)
    assert found is not None, "the answer begins within a block"
    return found


def whole_answer(text: str) -> Extracted:
    """All of an answer."""
    return Extracted(text, WHOLE)


def _best(blocks: list[_Block], language: str, last: bool) -> Extracted | None:
    ranked: dict[str, list[str]] = {IN_LANGUAGE: [], PLAIN: [], OTHER: []}
    for block in blocks:
        if block.code.strip():
            fits = re.fullmatch(language, block.language.lower())
            ranked[IN_LANGUAGE if fits else OTHER if block.language else PLAIN].append(block.code)
    return next((Extracted(found[-1 if last else 0], rule) for rule, found in ranked.items() if found), None)


def _is_unpaired(block: _Block) -> bool:
    """Whether a fence without an info string is unpaired: no fence closes it, or only one that was opened later."""
    swallows = re.search(rf"^ {{0,3}}{block.fence}[ \t]*\w", block.code, re.MULTILINE)
    return not block.language and (not block.closed or swallows is not None)


# A box's start, an escaped character (an escaped brace closes nothing), or a brace.
_TOKEN = re.compile(r"(?P<box>\\f?boxed\s*\{)|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\\f?boxed[ \t]*([-+]?(?:\\?\$)?\.?\d[^\s${}\\]*)(?:[ \t]*\$)?")


def last_box(text: str) -> str | None:
    """The content of the last closed box that is not empty; None if there is none.

    If boxes are nested, the inner one counts. Empty boxes are ignored because they repeat the prompt's instruction, and
    so are boxes that the token budget cut off.
    """
    last: tuple[int, str] | None = None
    open_braces: list[int | None] = []  # where a box's content starts; None for other braces
    for token in _TOKEN.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            content = "" if start is None else text[start : token.start()].strip()
            if start is not None and content and (last is None or start > last[0]):
                last = start, content
    return last[1] if last else None


def bare_box(text: str) -> str | None:
    """The number after the last ``\\boxed`` without braces ("$\\boxed 9$"); None if a word or nothing follows."""
    found = _BARE.findall(text)
    return found[-1].rstrip(".,;:") if found else None
