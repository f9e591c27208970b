"""Unpack the private tests of a row, which are published as JSON in a pickle, compressed, in base64.

Loading a pickle can run code, so this one is never loaded: its instructions are read one by one, and a pickle that does
more than build one string is refused. The unpacked size is limited.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib

LARGEST = 512 << 20
"""Bytes that the tests of one problem may unpack to."""

# Opcodes of a pickle of one string, in all protocols; others name globals, call them or build other objects.
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_BESIDE = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}


def unpack(packed: str, largest: int = LARGEST) -> str:
    """The text in ``packed``."""
    try:
        compressed = base64.b64decode(packed, validate=True)
        unpacker = zlib.decompressobj()
        pickled = unpacker.decompress(compressed, largest)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"neither JSON nor compressed base64: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {largest >> 20} MiB")
    if not unpacker.eof:
        raise ValueError("it is truncated")
    return _text(pickled)


def _text(pickled: bytes) -> str:
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _BESIDE:
                raise ValueError(f"its pickle has {opcode.name}, and only a text is taken out of one")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"{error}") from None
    if len(texts) != 1:
        raise ValueError(f"its pickle has {len(texts)} texts, and one is needed")
    return texts[0]
