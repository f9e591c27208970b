"""Whether two answers are the same number, whatever is written around it."""

from __future__ import annotations

import re

from specbench.evals.extract import last_box

TOLERANCE = 1e-6

# A sign, a dollar, digits with separators; what is cut off behind a decimal point ("18.") is still the number.
_NUMBER = re.compile(r"(-?)(?:\\?\$)?(\d[\d,]*(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_SPACING = re.compile(r"\{,\}|\\[,!;: ]|(?<=\d)\s+(?=\d{3}(?!\d))")  # "1{,}000", "1\,000" and "1 000" are 1000
_NOTE = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{[^{}]*\}")


def numeric(text: str, answer: str, gold: str) -> bool:
    """Whether an answer is the right number: the one in its last box if it has a box, else the one that lm-eval found.

    Args:
        text: the whole answer.
        answer: what the flexible filter extracted from it.
        gold: the reference, a number.
    """
    box = last_box(text)
    if box is not None:
        value = boxed_number(box)
    else:  # a filter that caught stray punctuation ("5 left..") did not see the number before it
        value = last_number(answer) if any(char.isdigit() for char in answer) else last_number(text)
    wanted = last_number(gold)
    return value is not None and wanted is not None and abs(value - wanted) < TOLERANCE


def boxed_number(box: str) -> float | None:
    """The value of a box that holds one number or fraction; units, currency and "x =" are allowed. Else None.

    A box is what the model calls its answer, so "1/2" must not pass for the 2 in it.
    """
    plain = _SPACING.sub("", _NOTE.sub(" ", box)).replace("\\$", "").replace("\\%", "").split("=")[-1]
    if fraction := _FRACTION.fullmatch(plain.strip()):
        sign, above, below = fraction.groups()
        return float(sign + above) / float(below) if float(below) else None
    found = list(_NUMBER.finditer(plain))
    rest = _NUMBER.sub("", plain)
    if len(found) != 1 or re.search(r"[\\/^*+_-]", rest):
        return None
    return _value(found[0])


def last_number(text: str) -> float | None:
    """The last number of a text; None when it has none."""
    found = list(_NUMBER.finditer(text))
    return _value(found[-1]) if found else None


def _value(match: re.Match[str]) -> float:
    return float(match[1] + match[2].replace(",", ""))
