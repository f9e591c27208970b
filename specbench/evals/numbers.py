"""Read numbers in a model's text, with digits, signs and separators of any script."""

from __future__ import annotations

import re
import unicodedata

MINUS = "\N{MINUS SIGN}"
_CHARACTERS = {
    **dict.fromkeys("\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\N{SUPERSCRIPT MINUS}\N{HEAVY MINUS SIGN}", MINUS),
    **dict.fromkeys("\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}\N{FULLWIDTH APOSTROPHE}", "'"),
    **dict.fromkeys("\N{FULLWIDTH FULL STOP}\N{ARABIC DECIMAL SEPARATOR}", "."),
    **dict.fromkeys("\N{FULLWIDTH COMMA}\N{ARABIC THOUSANDS SEPARATOR}", ","),
    **dict.fromkeys("\N{FULLWIDTH PERCENT SIGN}\N{ARABIC PERCENT SIGN}", "%"),
    "\N{FULLWIDTH PLUS SIGN}": "+",
    "\N{FULLWIDTH NUMBER SIGN}": "#",
}
_DASH = "\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}"  # a sign before a number, else punctuation
_NUMBER_AHEAD = r"(?=(?:[A-Z]{2,3} ?)?(?:\\?\$ ?)?\.?\d)"
# A sign apart from its number: after a mark that precedes an answer, or where it can only be a minus.
_APART = re.compile(rf"(\bis|[#:=(\[{{]|^)([^\S\n]*)([-{MINUS}{_DASH}])[^\S\n]+{_NUMBER_AHEAD}", re.MULTILINE)
_SIGN = re.compile(rf"(?<![\w)\]}}%])[{_DASH}]{_NUMBER_AHEAD}")
_GROUPED = re.compile(
    r"(?<![\w.,'])\d{1,3}(?:(?P<mark>[ '_]|\{,\}|\\[,!;: ]|~)\d{3})(?:(?P=mark)\d{3})*(?!\d|-[A-Za-z])"
)


def ascii_numbers(text: str) -> str:
    """A text with its numbers in ASCII, a sign next to its digits, and no separator but the comma between thousands.

    Dashes between two numbers or words stay. A text with only ASCII numbers without spaces stays unchanged.
    """
    if not text.isascii():
        text = "".join(map(_plain, text))
    text = _APART.sub(_joined, text)
    text = _SIGN.sub("-", text).replace(MINUS, "-")
    return _GROUPED.sub(lambda found: found[0].replace(found["mark"], ""), text)


def _plain(char: str) -> str:
    if char.isascii():
        return char
    if char in _CHARACTERS:
        return _CHARACTERS[char]
    kind = unicodedata.category(char)
    if kind == "Nd":
        return str(unicodedata.decimal(char))
    if kind == "Zs":
        return " "
    return "" if kind in ("Cf", "Sc") else char  # direction marks and currency signs, which a number does not need


def _joined(found: re.Match[str]) -> str:
    before, space, sign = found.groups()
    # At the start of a line only a minus sign is a sign; other dashes begin a list item.
    return f"{before}{space}-" if before or sign == MINUS else found[0]


_SCALES = {None: 1.0, "thousand": 1e3, "million": 1e6, "billion": 1e9}
# A sign, a currency, digits with separators; a point without digits after it ("18.") ends a sentence.
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}%])-|(?<!\d )(?<!\d)\bminus |\bnegative )?"
    r"(?P<dollar>(?:[A-Z]{2,3} ?)?\\?\$ ?|[A-Z]{3} )?(?P<late>(?<!\w)-)?"
    r"(?P<digits>\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?![\d.])"
    r"|\d+(?:,\d{2,3})*,\d{3}(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?: (?P<scale>thousand|million|billion)\b)?"
)
"""A number in a text that went through :func:`ascii_numbers`."""


def number_value(found: re.Match[str]) -> float:
    """The value of a match of ``NUMBER``."""
    digits = found["digits"]
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+(?:,\d{1,2}|(?:\.\d{3})+)", digits):  # 1.234.567 and 1.234,56
        digits = digits.replace(".", "").replace(",", ".")
    size = float(digits.replace(",", "")) * _SCALES[found["scale"]]
    return -size if found["sign"] or found["late"] else size
