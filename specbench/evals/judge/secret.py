"""An API key that is sent and never shown: whatever comes back from an endpoint goes through :meth:`Secret.scrub`."""

from __future__ import annotations

import base64
import html
import re

from specbench.common import UsageError

HIDDEN = "[key]"

# A shorter one cannot be kept out of anything: its letters are in every other word, and a judgment without them is
# another text. An endpoint that needs no key gets none.
_SHORTEST = 4
# As many characters of a key in a row count as the key, since texts are cut off anywhere. Fewer are in ordinary words.
_RUN = 8
# As many of its letters and digits count where all else between them is left out: a key that is spelt, or in pieces.
_SPELT = 12
_LOWER = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})

# How one character can be written: percent-encoded (once or again), escaped in JSON or Python, as an HTML entity.
_WRITTEN = re.compile(
    r"%(?:25)*([0-9a-f]{2})|\\+(?:u00|x)([0-9a-f]{2})|&#(\d{1,7});|&#x([0-9a-f]{1,6});|(&[a-z]{2,6};)|\\+(.)|(.)",
    re.IGNORECASE | re.DOTALL,
)


class Secret:
    """A key, as a header takes it."""

    def __init__(self, key: str) -> None:
        """
        Raises:
            UsageError: no header can hold it, or it is too short to be kept out of a text; does not show it.
        """
        if fault := fault_of(key):
            raise UsageError(f"the judge's key {fault}")
        self.key = key
        # As _unescaped leaves it: a key may itself look like something escaped, or not.
        plain = {_unescaped(key)[0], key.replace("\\", "")}
        in_hex = key.encode().hex()
        wholes = {key, in_hex, *_in_base64(key.encode()), *(text for text in plain if len(text) >= _SHORTEST)}
        wholes = {whole.translate(_LOWER) for whole in wholes}
        self._runs: dict[int, set[str]] = {}
        for whole in wholes:
            _add_runs(self._runs, whole, _RUN)
        # The beginning of a key at the end of a text that was cut off.
        self._starts = {whole[:size] for whole in wholes for size in range(_SHORTEST, min(_RUN, len(whole)))}
        self._spelt: dict[int, set[str]] = {}
        for whole in (key, in_hex, *plain):
            if len(letters := "".join(filter(str.isalnum, whole)).translate(_LOWER)) >= _SPELT:
                _add_runs(self._spelt, letters, _SPELT)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def scrub(self, text: str) -> str:
        """``text`` with ``[key]`` for the key, in whatever writing, and for parts of it.

        Scrub before shortening; what is very long first to far more than will be shown, for this looks at each letter.
        """
        found = [(at, at + size) for at, size in self._found(text)]  # an escape may begin just before the key
        plain, spans = _unescaped(text)
        found += [(spans[at][0], spans[at + size - 1][1]) for at, size in self._found(plain)]
        letters = [(char, span) for char, span in zip(plain, spans, strict=True) if char.isalnum()]
        spelt = "".join(char for char, _ in letters).translate(_LOWER)
        found += [(letters[at][1][0], letters[at + size - 1][1][1]) for at, size in _places(self._spelt, spelt)]
        parts: list[str] = []
        done = 0
        for start, stop in sorted(found):
            if stop <= done:
                continue
            if start > done or not done:
                parts += [text[done:start], HIDDEN]
            done = stop
        return "".join([*parts, text[done:]])

    def _found(self, text: str) -> list[tuple[int, int]]:
        """(place, length) of every part of the key, in letters of either case."""
        text = text.translate(_LOWER)
        starts = [(len(text) - len(start), len(start)) for start in self._starts if text.endswith(start)]
        return _places(self._runs, text) + starts


def _add_runs(runs: dict[int, set[str]], whole: str, most: int) -> None:
    size = min(most, len(whole))
    runs.setdefault(size, set()).update(whole[at : at + size] for at in range(len(whole) - size + 1))


def _places(runs: dict[int, set[str]], text: str) -> list[tuple[int, int]]:
    return [
        (at, size) for size, some in runs.items() for at in range(len(text) - size + 1) if text[at : at + size] in some
    ]


def fault_of(key: str) -> str | None:
    """Why this can be no key, as the end of a sentence about it; None for one that can."""
    if not key.strip():
        return "is blank"
    if not key.isascii() or not key.isprintable() or key != key.strip():
        return "holds characters that no key has"
    if len(key) < _SHORTEST:
        return f"is shorter than {_SHORTEST} characters, too short to be kept out of the records"
    return None


def _unescaped(text: str) -> tuple[str, list[tuple[int, int]]]:
    """``text`` as it was before anything escaped it, and where each of its characters was.

    Line breaks, what is not seen, and backslashes are left out: how many there are is a matter of who escaped it.
    """
    found: list[str] = []
    spans: list[tuple[int, int]] = []
    for written in _WRITTEN.finditer(text):
        percent, escaped, decimal, hexadecimal, entity, quoted, plain = written.groups()
        if plain:
            char = plain
        elif entity:
            char = html.unescape(entity)
        elif quoted:
            char = quoted
        else:
            code = int(decimal) if decimal else int(percent or escaped or hexadecimal, 16)
            char = chr(code) if code < 0x110000 else "?"
        if len(char) > 1:  # an "&copy;" that is none
            found += written[0]
            spans += [(written.start() + at, written.start() + at + 1) for at in range(len(written[0]))]
        elif char.isprintable() and char != "\\":
            found.append(char)
            spans.append(written.span())
    return "".join(found), spans


def _in_base64(key: bytes) -> set[str]:
    """What the key looks like within a longer text in base64: by where in a group of three bytes it begins."""
    found = set()
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(key)) // 6  # characters that the key alone decides
        padded = b"\0" * before + key + b"\0\0"
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(padded).decode()[first:last])
    return found
