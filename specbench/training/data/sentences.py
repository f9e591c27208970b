"""Where an answer says one of its sentences once too often (CLLM §3.1 leaves such text out).

A sentence is a stretch of text up to a full stop, question mark or exclamation mark with a blank behind it, or up to a
line break; blanks count alike, however many. Short ones, such as "Yes." or a closing bracket, may come up as often as
they like.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

#: Characters of a sentence that counts, its blanks included.
SHORTEST = 16

_STOPS, _STOPS_ALONE = ".!?", "。！？"  # Chinese and Japanese full stops need no blank
# All blanks in a row are one match, or a million of them would be looked through a million times.
_BLANKS = re.compile(rf"(?<=[{_STOPS_ALONE}])\s*|\s+")


def before_repeat(answer: Sequence[int], decode: Callable[[Sequence[int]], str], most: int) -> int:
    """Tokens of an answer before one of its sentences begins for the ``most``-th time; all of them where none does.

    Args:
        most: at least 2.
    """
    seen: Counter[str] = Counter()
    for start, sentence in sentences(decode(answer)):
        seen[sentence] += 1
        if seen[sentence] == most:
            # The first token whose text reaches into it. A part of a character is one, too: it is never too late.
            return bisect_right(range(1, len(answer) + 1), start, key=lambda count: len(decode(answer[:count])))
    return len(answer)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Where each sentence that counts begins, and what it says, blanks as one."""
    start = len(text) - len(text.lstrip())
    for end in (*filter(_ends, _BLANKS.finditer(text, start)), None):
        said = " ".join(text[start : end.start() if end else None].split())
        if len(said) >= SHORTEST:
            yield start, said
        start = end.end() if end else start


def _ends(blanks: re.Match[str]) -> bool:
    """Whether a sentence ends at these blanks."""
    return "\n" in blanks[0] or blanks.string[blanks.start() - 1] in _STOPS + _STOPS_ALONE
