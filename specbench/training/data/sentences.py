"""Find where an answer repeats a sentence too often (CLLM §3.1 leaves such text out).

A sentence ends at a full stop, question mark or exclamation mark that is followed by whitespace, or at a line break.
Runs of whitespace count as one space. Short sentences, such as "Yes." or a closing bracket, are not counted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

#: Fewest characters of a sentence that is counted, spaces included.
SHORTEST = 16

_STOPS, _STOPS_ALONE = ".!?", "。！？"  # Chinese and Japanese full stops need no blank
# A run of whitespace is one match: with shorter matches a long run would take quadratic time.
_BLANKS = re.compile(rf"(?<=[{_STOPS_ALONE}])\s*|\s+")


def before_repeat(answer: Sequence[int], decode: Callable[[Sequence[int]], str], most: int) -> int:
    """Return the number of tokens before a sentence begins for the ``most``-th time, or the answer's length.

    Args:
        most: at least 2.
    """
    seen: Counter[str] = Counter()
    for start, sentence in sentences(decode(answer)):
        seen[sentence] += 1
        if seen[sentence] == most:
            # The first token whose text reaches into the sentence. An incomplete character counts as one, so the result
            # may be too early but never too late.
            return bisect_right(range(1, len(answer) + 1), start, key=lambda count: len(decode(answer[:count])))
    return len(answer)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield (start, text) of each counted sentence, with whitespace normalised."""
    start = len(text) - len(text.lstrip())
    for end in (*filter(_ends, _BLANKS.finditer(text, start)), None):
        sentence = " ".join(text[start : end.start() if end else None].split())
        if len(sentence) >= SHORTEST:
            yield start, sentence
        start = end.end() if end else start


def _ends(blanks: re.Match[str]) -> bool:
    """Return whether a sentence ends at this whitespace."""
    return "\n" in blanks[0] or blanks.string[blanks.start() - 1] in _STOPS + _STOPS_ALONE
