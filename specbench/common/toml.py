"""Read TOML files (settings of methods, tasks and catalogs) within limits; errors are one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.common.reading import read_text, unreadable

if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    from tomli import loads

_LARGEST = 4 << 20
# Parsing a dotted key takes time quadratic in its parts, and nested arrays take a Python call each.
_MOST_DOTS, _DEEPEST = 1000, 64
_OTHER = re.compile(r"[^][{}]+")


def read(path: Path, todo: str, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        parse_float: converts the text of a decimal number.
    """
    return parse(read_text(path, todo, _LARGEST), path, todo, parse_float=parse_float)


def parse(text: str, where: object, todo: str, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The content of a TOML text; ``where`` is its name in errors; the rest as in :func:`read`."""
    if max(map(_dots, text.split("\n"))) > _MOST_DOTS or _depth(text) > _DEEPEST:
        raise unreadable(where, "nested too deeply", todo)
    try:
        return loads(text, parse_float=parse_float)
    # tomllib raises ValueErrors, also for impossible dates and numbers with too many digits. Strings can hide brackets
    # from the check above: RecursionError.
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise unreadable(where, f"not TOML: {error}", todo) from None


def _dots(line: str) -> int:
    return line.count(".")


def _depth(text: str) -> int:
    """Nesting depth of brackets, as far as it matters; unclosed brackets count as levels."""
    brackets = _OTHER.sub("", text)
    for level in range(_DEEPEST + 1):
        inner = brackets.replace("[]", "").replace("{}", "")
        if inner == brackets:
            return level + brackets.count("[") + brackets.count("{")
        brackets = inner
    return _DEEPEST + 1
