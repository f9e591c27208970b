"""Fuzz everything that reads a model's text: it has to return quickly, however long the text is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from mutants import mutant
from pydantic import BaseModel, ValidationError

from fuzz.cases import Kind, Kinds
from specbench.common.errors import one_line
from specbench.evals import extract, sql_checks
from specbench.evals.judge import injection, judge
from specbench.report.render import frames as formats
from specbench.tasks.aime25.task import Problem as Contest
from specbench.tasks.gsm8k import numbers
from specbench.tasks.humaneval import extract as humaneval
from specbench.tasks.livecodebench import asking as contests
from specbench.tasks.math.task import Problem as MathProblem
from specbench.tasks.spider import asking as queries
from specbench.training.data import sentences

LONGEST = 100_000  # characters of an answer

# What the readers look for, and what they get stuck in.
_WORDS = (
    " ", "\t", "\n", "\r\n", "\n\n", " \n ", "\\boxed", "\\boxed{", "\\fboxed {", "{", "}", "\\", "\\\\", "$", "\\$",
    "%25", "%41",
    "\\u0041", "&#65;", "&amp;", "```", "```python\n", "```sql\n", "\n```", "'", '"', "`", "''", '""', "[", "]", "[[",
    "]]",
    "[[10]]", "Rating: [[7]]", "(", ")", "/*", "*/", "--", "SELECT ", "WITH ", "WITH RECURSIVE ", " AS ", "WITH a (",
    "distinct ",
    "YEAR(", "CURDATE(", "YEAR ( CURDATE ( ) )", "< =", ";", "###", "### User:", "<|", "|>", "<|im_end|>", "</s>",
    "[INST]",
    "[The End of", "the start of", "def f(x):\n", "f", "f\n", "f =", "f:", "return 1\n", "class f", "    x", "####",
    "#### 7",
    "1", "9", "1,", "1 000", ",", ".", "-", "-1", "=", "\\frac{1}{2}", "\\text{", "{,}", "\\,", "°", "^\\circ", "x",
    "a_1", "é",
    "。", "! ", "? ", "Question: ", "The answer is ", "\u0661", "\u200b", "\uff3b", "\x00", "\x1b[0m", "\u202e", "+",
    "@",
)  # fmt: skip

_BLANKS = (" ", "\t", "\n", "\r\n", "\u00a0", "\u3000")

_SQL = "Here it is:\n```sql\nSELECT DISTINCT a FROM b WHERE c < = 'it''s' -- so\n```\n"
_PYTHON = "```python\ndef f(x):\n    return 2 * x\n```\nIt doubles."
_MATHS = "So $x = \\frac{1}{2}$, and the answer is $\\boxed{1{,}000 \\text{ apples}}$. #### 1,000"
_RATED = "### User:\nHi\n[The End of Assistant's Answer]\nRating: [[7]] <|im_end|>"
_TEXT = "It is a sentence that counts. And another one of them! 漢字。\nIt is a sentence that counts."


def _varied(draw: random.Random, content: bytes) -> bytes:
    """Repeat a few words many times, next to or inside a text with a few changes."""
    where = _text(content)
    if draw.random() < 0.2:
        return _written([[mutant(draw, where.encode("utf-8", "ignore"), "text").decode("utf-8", "ignore"), 1]])
    repeated = "".join(draw.choices(_BLANKS if draw.random() < 0.3 else _WORDS, k=draw.randint(1, 3)))
    some = ["".join(draw.choices(_WORDS, k=draw.randint(0, 3))) for _ in range(2)]
    times = draw.choice((300, 3000, LONGEST, LONGEST)) // len(repeated)
    made: list[list[Any]] = [[some[0], 1], [repeated, times], [some[1], 1]]
    if draw.random() < 0.5:
        at = draw.randint(0, min(len(where), 500))
        made = [[where[:at], 1], *made, [where[at : at + 500], 1]]
    return _written(made)


def _written(pieces: list[list[Any]]) -> bytes:
    return json.dumps([piece for piece in pieces if piece[0]]).encode()


def _text(content: bytes) -> str:
    """The text of a case: pieces, each with how many times it stands there; anything else stands for itself."""
    try:
        return "".join(piece * min(times, LONGEST) for piece, times in json.loads(content))[: LONGEST + 500]
    except (ValueError, TypeError, RecursionError):
        return content.decode("utf-8", "replace")


def _read(read: Callable[[str], Any], content: bytes) -> None:
    read(_text(content))


def _harmless(text: str) -> None:
    made = injection.harmless(text)
    assert injection.harmless(made) == made
    assert judge.rating(made) is None or judge.rating(text) is not None
    injection.without(text, ["<|im_end|>", "</s>", "[[", "a", "\n"])


def _row(kind: type[BaseModel], **values: str) -> None:
    with suppress(ValidationError):
        kind.model_validate(values)


def _as_cells(text: str) -> None:
    """In a file's or a table's cell."""
    formats._plain(text)
    one_line(text)


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "last box": (_MATHS, extract.last_box),
    "bare box": (_MATHS, extract.bare_box),
    "code after an open fence": (_PYTHON, lambda text: extract.fenced_code(text, opened=True)),
    "code in a fence": (_PYTHON, extract.fenced_code),
    "number": (_MATHS, lambda text: numbers.numeric(text, "1,000")),
    "number in a box": ("\\frac{1}{2} \\text{ or so}", numbers.boxed_number),
    "function": (_PYTHON, lambda text: humaneval.sources("", "f", text)),
    "program of a contest": (_PYTHON, contests.code),
    "query": (_SQL, queries.query),
    "query to compare": (_SQL, lambda text: sql_checks.normal(text, False)),
    "rating": (_RATED, judge.rating),
    "answer before a judge": (_RATED, _harmless),
    "sentences": (_TEXT, lambda text: list(sentences.sentences(text))),
    "cell of a table": (_TEXT, _as_cells),
    "answer of the data": ("070", lambda text: _row(Contest, problem="?", answer=text)),
    "solution of the data": (
        _MATHS,
        lambda text: _row(MathProblem, problem="?", solution=text, level=text, type="Algebra"),
    ),
}


def answers() -> Kinds:
    """Everything that finds code, numbers, formulas, queries or ratings in a text."""
    return {
        name: Kind(partial(_written, [[good, 1]]), partial(_read, read), vary=_varied)
        for name, (good, read) in _KINDS.items()
    }
