"""From a judge's words to its rating."""

from __future__ import annotations

import re

# FastChat, llm_judge/common.py: the asked-for form, then the one that judges fall into.
_PATTERNS = (re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]"))

LOWEST, HIGHEST = 1.0, 10.0


def rating(text: str) -> float | None:
    """The rating in a judgment; None where there is none.

    A number outside 1 to 10 is none either: the prompts ask for that scale, and the second form also finds the "[12]"
    of a footnote. FastChat would count it.
    """
    for pattern in _PATTERNS:
        if found := pattern.search(text):
            value = float(found[1])
            return value if LOWEST <= value <= HIGHEST else None
    return None
