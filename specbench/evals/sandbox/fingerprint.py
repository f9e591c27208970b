"""Compare large values by hash: equal values have equal hashes, and a program cannot guess the hash of a value.

Some canonical solutions of EvalPlus return a gigabyte (Mbpp/255). The program hashes what it returns where it runs, and
never sees the right value's hash. Standard library only; ``marshal`` is only written here, never read.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from itertools import chain
from typing import Any

BOUND = 1 << 14
"""Items, characters and bytes of integers that a value may hold and still be sent as it is."""

_PLAIN = {str, int, bytes, type(None)}  # their written forms are equal exactly when they are
_CHUNK = 4096


def large(value: Any, bound: int = BOUND) -> bool:
    """Whether ``value`` holds more than ``bound``. Equal values have equal size (1 and 1.0 count the same)."""
    count, stack = 0, [value]
    while stack and count <= bound:
        item = stack.pop()
        count += 1
        if isinstance(item, (str, bytes)):
            count += len(item)
        elif isinstance(item, int):
            count += item.bit_length() >> 6
        elif isinstance(item, (list, tuple, set, frozenset, dict)):
            if len(item) > bound:
                return True
            stack.extend(item)
            stack.extend(item.values() if isinstance(item, dict) else ())
    return count > bound


def fingerprint(value: Any) -> str:
    """SHA-256 of ``value``, the same for all values that are equal in Python (1, 1.0 and True; dicts in any order).

    Raises:
        ValueError, TypeError, RecursionError: it contains something that is not plain data, or contains itself.
    """
    import hashlib  # takes milliseconds, and most programs do not need it

    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(marshal.dumps(part, 2))  # from version 3 on, equal values may be written differently
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if not isinstance(value, (list, tuple)):
        yield _normal(value)
        return
    yield "list" if isinstance(value, list) else "tuple"
    for start in range(0, len(value), _CHUNK):  # never a second copy of the whole
        chunk = list(value[start : start + _CHUNK])
        yield chunk if _is_plain(chunk) else [_normal(item) for item in chunk]


def _is_plain(items: list[Any]) -> bool:
    """Whether they are plain, or sequences of plain items. All at the speed of C: there may be ten million."""
    kinds = set(map(type, items))
    if not kinds <= _PLAIN | {list, tuple}:
        return False
    nested = chain.from_iterable(item for item in items if type(item) in (list, tuple))
    return set(map(type, nested)) <= _PLAIN


def _normal(value: Any) -> Any:
    """``value`` in a form that equal values share, of types that ``marshal`` writes in one way."""
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, complex):
        return _normal(value.real) if value.imag == 0 else complex(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_normal(item) for item in value)
    if isinstance(value, dict):
        return ("dict", sorted(marshal.dumps((_normal(key), _normal(item)), 2) for key, item in value.items()), 0.5)
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(marshal.dumps(_normal(item), 2) for item in value), 0.5)  # 0.5: no tuple is written so
    raise TypeError(f"a {type(value).__name__} is not plain data")
