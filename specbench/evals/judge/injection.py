"""Make text of an answer harmless that a judge could read as its prompt, its rating, or a control token of its model.

An answer may contain "[The End of Assistant's Answer]" and continue as if it were the prompt, or "[[10]]", which a
judge may quote before its own rating. Such brackets become round: "(The End of Assistant's Answer]", "((10))",
"(|im_end|)", and the "###" of a line "### User:" becomes "(###)". All other answers, and the hashes of their prompts,
stay as they are; changed answers are marked and counted.

Delimiters of the published prompts, numbers in double brackets (single ones after "Rating:"), and tokens of chat
templates are changed, also with blanks, invisible characters or wide brackets. Other brackets and plain words stay.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_GAP = "[\\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]"  # blanks and invisible characters
_SOME, _ANY = f"{_GAP}{{1,8}}", f"{_GAP}{{0,8}}"
_OPEN, _SHUT = "[\\[\uff3b]", "[\\]\uff3d]"
_LESS, _MORE, _BAR = "[<\uff1c]", "[>\uff1e]", "[|\uff5c]"
_NUMBER = r"\d+(?:\.\d*)?"
_BOUNDARY = f"the{_SOME}(?:start|end){_SOME}of"

_PATTERN = re.compile(
    "|".join(
        (
            f"(?:{_OPEN}{_ANY}{_OPEN}|\u27e6){_ANY}{_NUMBER}{_ANY}(?:{_SHUT}{_ANY}{_SHUT}|\u27e7)",
            f"\\b(?:rating|score){_ANY}[:\uff1a]{_ANY}{_OPEN}{_ANY}{_NUMBER}{_ANY}{_SHUT}",
            f"{_LESS}{_BAR}(?!\\s)[^|\uff5c<>\\n]{{1,80}}{_BAR}{_MORE}",
            f"(?:{_OPEN}|{_LESS}{_BAR}){_ANY}{_BOUNDARY}\\b",
            f"^{_ANY}{_OPEN}{_ANY}(?:instruction|question){_ANY}{_SHUT}(?={_ANY}$)",
            f"^[ \\t]{{0,8}}###{_ANY}(?:user|assistant(?:{_SOME}[ab])?|reference{_SOME}answer){_ANY}[:\uff1a]",
            r"<(?:/?s|bos|eos|(?:start|end)_of_(?:turn|image|utterance))>|<</?sys>>|\[/?(?:inst|system_prompt|gmask)\]",
        )
    ),
    re.IGNORECASE | re.MULTILINE,
)
_ROUND = str.maketrans(
    {"[": "(", "\uff3b": "(", "<": "(", "\uff1c": "(", "\u27e6": "((", "]": ")", "\uff3d": ")", ">": ")", "\uff1e": ")"}
    | {"\u27e7": "))"}
)


def harmless(text: str) -> str:
    """An answer that is safe to show to a judge; unchanged if there is nothing to change."""
    while (made := _PATTERN.sub(lambda found: _softened(found[0]), text)) != text:
        text = made
    return text


def without(text: str, tokens: Collection[str]) -> str:
    """A text without these tokens: their brackets become round, or a blank follows their first letter.

    Args:
        tokens: texts that the judge's tokenizer takes for control tokens anywhere; blank ones are left.
    """
    longest_first = sorted((token for token in tokens if token.strip()), key=len, reverse=True)
    control = re.compile("|".join(map(re.escape, longest_first)))
    while longest_first and (made := control.sub(_broken, text)) != text:
        text = made
    return text


def _broken(found: re.Match[str]) -> str:
    token = found[0]
    soft = _softened(token)
    return soft if soft != token or len(token) == 1 else f"{token[0]} {token[1:]}"


def _softened(text: str) -> str:
    """A delimiter, a rating or a token, made harmless."""
    return text.translate(_ROUND).replace("###", "(###)")
