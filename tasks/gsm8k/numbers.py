"""Compare the numbers of two answers, whatever text surrounds them."""

from __future__ import annotations

import re

from specbench.evals import NUMBER, ascii_numbers, bare_box, last_box, number_value

TOLERANCE = 1e-6

_FRACTION = re.compile(r"(-?) ?(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+) ?/ ?(\d+))")
_NOTE = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{[^{}]*\}")
# Two ways to announce the answer: GSM8K's own mark, or a sentence. The answer follows on the same line.
_MARK = re.compile(r"####+")
_SENTENCE = re.compile(r"\banswer\b[*_:\s]*(?:\bis\b|=|:)", re.IGNORECASE)

BOX, MARK, SENTENCE, LAST = "last box", "'####'", "'the answer is'", "last number"


def numeric(text: str, gold: str) -> bool:
    """Whether the :func:`final_number` of an answer is the right number."""
    found, wanted = final_number(text)[0], last_number(gold)
    return found is not None and wanted is not None and abs(found - wanted) < TOLERANCE


def final_number(text: str) -> tuple[float | None, str]:
    """(the final number of an answer, the rule that found it).

    The first of these that the text has: a box with braces, the last line with "####", the last sentence "the answer
    is", a box without braces, the last number. A box without a number counts as a wrong answer.
    """
    box = last_box(text)
    if box is not None:
        return boxed_number(box), BOX
    plain = ascii_numbers(text)
    for by, pattern in ((MARK, _MARK), (SENTENCE, _SENTENCE)):
        for line in reversed(pattern.split(plain)[1:]):
            # The result of a calculation counts: 18 in "9 * 2 = 18".
            if found := NUMBER.search(line.partition("\n")[0].rpartition("=")[2]):
                return number_value(found), by
    if (bare := bare_box(plain)) is not None:
        return boxed_number(bare), BOX
    return last_number(text), LAST


def boxed_number(box: str) -> float | None:
    """The value of a box that holds one number or fraction; units, currency and "x =" are allowed. Else None.

    The whole box is the model's answer, so "1/2" must not be read as 2.
    """
    # After "=" a dash is a sign even if it stands apart.
    plain = ascii_numbers("=" + _NOTE.sub(" ", box)).replace("\\$", "").replace("\\%", "").split("=")[-1].strip(" $")
    if fraction := _FRACTION.fullmatch(plain):
        sign, *parts = fraction.groups()
        above, below = (part for part in parts if part is not None)
        return float(sign + above) / float(below) if float(below) else None
    found = list(NUMBER.finditer(plain))
    rest = NUMBER.sub("", plain)
    if len(found) != 1 or re.search(r"[\\/^*+_-]", rest):
        return None
    return number_value(found[0])


def last_number(text: str) -> float | None:
    """The last number of a text; None if there is none."""
    found = list(NUMBER.finditer(ascii_numbers(text)))
    return number_value(found[-1]) if found else None
