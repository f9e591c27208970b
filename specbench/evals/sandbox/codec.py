"""Values and frames between the tests and the program under test, as JSON: plain data in, plain data out.

Not pickle or marshal: decoding what a hostile process wrote must not run or corrupt anything, and no object of its
classes may reach the tests. Standard library only.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

MAX_FRAME = 8 << 20
"""Largest frame accepted, in bytes. A longer answer is a failure."""


class Opaque:
    """A value that is not plain data. It equals nothing."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def pack(value: Any) -> Any:
    """``value`` as JSON data. Subclasses become their base; iterators, ranges and views an iterator of their items."""
    if value is None or isinstance(value, (bool, float)):
        return value if value is None or isinstance(value, bool) else float(value)
    if isinstance(value, int):
        # JSON's decimal digits are quadratic and capped by sys.set_int_max_str_digits; hexadecimal is neither
        return int(value) if -(1 << 63) <= value < 1 << 63 else {"int": hex(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [pack(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    for module, name in (("fractions", "Fraction"), ("decimal", "Decimal")):
        kind_of = getattr(sys.modules.get(module), name, None)  # not loaded: then it cannot be one
        if kind_of is not None and isinstance(value, kind_of):
            exact = [pack(value.numerator), pack(value.denominator)] if name == "Fraction" else str(value)
            return {name: exact}
    if hasattr(value, "__iter__"):
        return {"iter": [pack(item) for item in value]}
    return {"opaque": f"<{type(value).__name__} object>"}


def unpack(data: Any) -> Any:
    """The value of ``pack``'s data.

    Raises:
        ValueError, TypeError, KeyError, ArithmeticError, RecursionError: the data were not made by ``pack``.
    """
    if isinstance(data, list):
        return [unpack(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, body),) = data.items()
    if kind == "int":
        return int(body, 16)
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in body}
    if kind == "bytes":
        return bytes.fromhex(body)
    if kind == "complex":
        return complex(*body)
    if kind == "Fraction":
        from fractions import Fraction  # rare, and 5 ms of start-up

        return Fraction(*unpack(body))  # from two integers: parsing a text such as 1e999999999 would never return
    if kind == "Decimal":
        from decimal import Decimal

        return Decimal(body)
    if kind == "opaque":
        return Opaque(str(body))
    make: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "iter": iter}
    return make[kind]([unpack(item) for item in body])


def frame(message: Any) -> bytes:
    """``message`` (JSON data) as bytes on a pipe: 4 bytes of length, then ASCII JSON."""
    body = json.dumps(message).encode("ascii")
    return struct.pack(">I", len(body)) + body


def send(fd: int, message: Any) -> None:
    """Write one frame."""
    view = memoryview(frame(message))
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int, most: int | None = MAX_FRAME) -> Any:
    """Read one frame.

    Args:
        most: bytes accepted; None for a trusted sender.

    Raises:
        EOFError: the other side is gone.
        ValueError: too long, or not JSON.
    """
    (length,) = struct.unpack(">I", _exactly(fd, 4))
    if most is not None and length > most:
        raise ValueError("answer too large")
    return json.loads(_exactly(fd, length))


def _exactly(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 16))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
