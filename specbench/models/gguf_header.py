"""What a GGUF file says of its fields and tensors, checked before a library believes it.

The library makes an object for each value that an array claims to have. Here a file is walked once, without its
weights: counts, lengths, types, shapes and offsets have to fit into the file.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.common import UsageError, one_line, open_file

_TODO = "take a whole copy of the model, or give another"
_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Far beyond what there is: the largest vocabularies have 300,000 tokens, the largest models 10,000 tensors.
_FIELDS, _VALUES, _TENSORS, _DIMENSIONS, _NAME = 10_000, 4_000_000, 100_000, 4, 1 << 16


@dataclass
class Header:
    """What a file says.

    Attributes:
        fields: numbers, flags and texts by name; of arrays, how many values they have.
        tensors: shape by name, the innermost dimension first, as the format has it.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        total = 0
        for shape in self.tensors.values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


def read(file: Path) -> Header:
    """The header of a file."""
    with open_file(file, _TODO) as opened:
        if os.fstat(opened.fileno()).st_size < 24:
            raise _refused(file, "it is too short for a GGUF file")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                found = _Walk(content).header()
                _check_sizes(found)
            except _Absurd as error:
                raise _refused(file, str(error)) from None
            return found


def _refused(file: Path, why: str) -> UsageError:
    return UsageError(f"{one_line(file.name, 120)} cannot be loaded: it is damaged ({why}); {_TODO}")


class _Absurd(Exception):
    """What is wrong with a header."""


class _Walk:
    """A place in a file, from its beginning on."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at, self._values = content, 0, 0

    def header(self) -> Header:
        if self._take(4) != _MAGIC:
            raise _Absurd("it does not begin as a GGUF file does")
        version = self._number("I")
        if version not in (2, 3):
            raise _Absurd(f"version {version} of the format is not known, or its bytes are in another order")
        tensors, fields = self._number("Q"), self._number("Q")
        if tensors > _TENSORS or fields > _FIELDS:
            raise _Absurd(f"it claims {tensors:,} tensors and {fields:,} fields")
        found = Header()
        for _ in range(fields):
            name = self._text(_NAME)
            found.fields[name] = self._value(self._number("I"), name, 0)
        placed = [self._tensor(found) for _ in range(tensors)]
        align = found.fields.get("general.alignment", 32)
        if type(align) is not int or not 0 < align <= 1 << 20 or align & (align - 1):
            raise _Absurd("its alignment is no power of two")
        begin = -(-self._at // align) * align
        for name, offset, size in placed:
            if begin + offset + size > len(self._content):
                raise _Absurd(f"tensor {one_line(name, 80)} ends beyond the file")
        return found

    def _tensor(self, found: Header) -> tuple[str, int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._text(_NAME)
        dimensions = self._number("I")
        if name in found.tensors:
            raise _Absurd(f"two tensors are called {one_line(name, 80)}")
        if not 0 < dimensions <= _DIMENSIONS:
            raise _Absurd(f"tensor {one_line(name, 80)} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        try:
            block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise _Absurd(f"tensor {one_line(name, 80)} is of unknown type {kind}") from None
        count = 1
        for size in shape:
            count *= size
        if count < 1 or shape[0] % block:
            raise _Absurd(f"tensor {one_line(name, 80)} cannot have the shape {[*shape]}")
        found.tensors[name] = shape
        return name, offset, count // block * nbytes

    def _value(self, kind: int, name: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text(len(self._content))
        if kind != _ARRAY or depth > 2:
            raise _Absurd(f"field {one_line(name, 80)} is of unknown type {kind}")
        inner, count = self._number("I"), self._number("Q")
        self._values += count
        if self._values > _VALUES:
            raise _Absurd(f"field {one_line(name, 80)} claims {count:,} values")
        if inner in _SCALARS:
            self._take(count * struct.calcsize("<" + _SCALARS[inner]))
        else:
            for _ in range(count):
                self._value(inner, name, depth + 1)
        return count

    def _text(self, most: int) -> str:
        size = self._number("Q")
        if size > most:
            raise _Absurd(f"it claims a text of {size:,} bytes")
        return self._take(size).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))[0]

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._content):
            raise _Absurd("it ends in the middle of its header")
        found = self._content[self._at : self._at + size]
        self._at += size
        return found


def _check_sizes(header: Header) -> None:
    """Refuses sizes that the tensors do not have: weights that a file lacks would be made up, however many."""
    layers = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    widest = max((size for shape in header.tensors.values() for size in shape), default=0)
    for name, value in header.fields.items():
        last = name.rpartition(".")[2]
        most = {"block_count": len(layers), "embedding_length": widest, "feed_forward_length": widest}.get(last)
        if name.count(".") == 1 and most is not None and (type(value) is not int or not 0 <= value <= most):
            raise _Absurd(f"its {one_line(name, 80)} is {one_line(str(value), 40)}, its tensors make {most} the most")


def check_text(header: Header, file: Path) -> None:
    """Refuses a file without the one tensor that every model begins with."""
    if "token_embd.weight" not in header.tensors:
        raise UsageError(f"{file.name} cannot be loaded: it holds no token_embd.weight, so no language model; {_TODO}")
