"""Copies of a file's content with bytes, tokens and values changed at random, as damage and attackers change them."""

from __future__ import annotations

import copy
import json
import random
import re
from contextlib import suppress
from typing import Any

# Values that JSON can say and Python's writer cannot, put in after it.
_RAW = {
    "<digits>": b"9" * 5000,
    "<more digits>": b"-" + b"7" * 4200,
    "<infinite>": b"1e999",
    "<nan>": b"NaN",
    "<-inf>": b"-Infinity",
    "<half a pair>": b'"\\ud800"',
    "<deep>": b"[" * 150 + b"]" * 150,
    "<deeper>": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "<bottomless>": b"[" * 200_000,
}
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 99, 0.5, -0.0, 1e308, 1e-320, 2**31, 2**63, 10**30, "", " ", "x", "1", "true",
    "\0", "a\nb", "é\u202e\x1b]0;t\x07", "../..", "x" * 5000, [], {}, [[]], [None], [1, "a", None], {"": {}},
    {"a": [{}]}, *_RAW,
)  # fmt: skip
_PIECES = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\xc3", b"\r\n", b"\n", b"\n\n", b"\x1f\x8b\x08\x00",
    b"\x85", b"[", b"]", b"{", b"}", b'"', b"'", b'"""', b"\\", b"\\u", b",", b":", b"=", b"#", b"- ", b"? ",
    b"| ", b"> ",
    b"&a ", b"*a", b"<<: ", b"!!int ''", b"!!timestamp x", b"!!python/object:os.system {}", b"!!binary x",
    b"!!set {a}", b"2023-99-99", b"9:99:99", b"0x", b"0o8", b"1e", b"%YAML 9.9\n", b"---\n", b"...\n", b"inf", b"nan",
    b"[[a]]\n",
    b"a.b.c.d = 1\n", b"a." * 3000, b"[" * 3000, b"{a: " * 300, b"null", b"true", b"-1", b"9" * 5000,
)  # fmt: skip
_TOKEN = re.compile(rb"\w+|\s+|.", re.DOTALL)


def mutant(draw: random.Random, content: bytes, form: str) -> bytes:
    """Content with one to four changes.

    Args:
        draw: decides which.
        content: of a good file.
        form: "json", "lines" (of JSON), "text" or "binary"; values are changed in the first two, where they are JSON.
    """
    found = content
    if form in ("json", "lines") and draw.random() < 0.7:
        with suppress(ValueError, RecursionError, IndexError):  # a mutant of a mutant may be none any more, or empty
            found = _other_values(draw, found, form)
            if draw.random() < 0.8:
                return found
    for _ in range(draw.randint(1, 3)):
        found = (_other_tokens if form != "binary" and draw.random() < 0.6 else _other_bytes)(draw, found)
    return found


def _other_bytes(draw: random.Random, content: bytes) -> bytes:
    size = len(content)
    at, to = sorted((draw.randint(0, size), draw.randint(0, size)))
    to = min(to, at + draw.choice((1, 8, 64, size)))
    match draw.randrange(7):
        case 0 if size:  # a bit
            at = min(at, size - 1)
            return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        case 1:
            return content[:at]
        case 2:
            return content[:at] + content[to:]
        case 3:
            return content[:to] + content[at:]
        case 4:
            return content[:at] + draw.randbytes(draw.randint(1, 16)) + content[to:]
        case 5:
            other = draw.randint(0, size)
            return content[:at] + content[other : other + to - at] + content[to:]
        case _:
            return content[:at] + draw.choice(_PIECES) + content[at:]


def _other_tokens(draw: random.Random, content: bytes) -> bytes:
    tokens = _TOKEN.findall(content)
    if not tokens:
        return draw.choice(_PIECES)
    at, other = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    match draw.randrange(5):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[other])
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            tokens[at] = draw.choice(_PIECES)
        case _:
            tokens.insert(at, draw.choice(_PIECES))
    return b"".join(tokens)


def _other_values(draw: random.Random, content: bytes, form: str) -> bytes:
    if form == "json":
        return _written(_changed(draw, json.loads(content)))
    lines = [json.loads(line) for line in content.splitlines()]
    at = draw.randrange(len(lines))
    lines[at] = _changed(draw, lines[at])
    if draw.random() < 0.1:
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    return b"".join(_written(line) + b"\n" for line in lines)


def _changed(draw: random.Random, value: Any) -> Any:
    """The value with one to three changes somewhere within."""
    found = [copy.deepcopy(value)]
    for _ in range(draw.randint(1, 3)):
        places = list(_places(found))
        holder, key = draw.choice(places)
        match draw.randrange(6):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw.choice(("", "x", "schema_version", "a\nb" * 50))] = holder.pop(key)
            case 2 if isinstance(holder, list) and holder is not found:
                holder.insert(key, copy.deepcopy(draw.choice(holder)))
            case 3:
                other, name = draw.choice(places)
                if other is not found and holder is not found:
                    try:
                        holder[key] = copy.deepcopy(other[name])
                    except (KeyError, IndexError):
                        continue
            case _:
                holder[key] = copy.deepcopy(draw.choice(_VALUES))
    return found[0]


def _places(value: Any) -> Any:
    """(list or mapping, index or name) of everything within."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _written(value: Any) -> bytes:
    text = json.dumps(value).encode()
    for name, raw in _RAW.items():
        text = text.replace(b'"%s"' % name.encode(), raw)
    return text
