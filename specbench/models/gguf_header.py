"""Read and check a GGUF file's header before a library reads it.

The library allocates an object for each value that an array claims to have. Here the header is parsed once: counts,
lengths, types, shapes and offsets have to fit into the file.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.common import UsageError, one_line, open_file

_TODO = "use a complete copy of the model, or choose another"
_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Far above real files: the largest vocabularies have 300,000 tokens, the largest models 10,000 tensors.
_FIELDS, _VALUES, _TENSORS, _DIMENSIONS, _NAME = 10_000, 4_000_000, 100_000, 4, 1 << 16


@dataclass
class Header:
    """Header of a file.

    Attributes:
        fields: numbers, flags and strings by name; for an array, its number of values.
        tensors: shapes by name, innermost dimension first, as in the format.
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
    """Read and check the header of a file."""
    with open_file(file, _TODO) as opened:
        if os.fstat(opened.fileno()).st_size < 24:
            raise _refused(file, "it is too short for a GGUF file")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                found = _Parser(content).header()
                _check_sizes(found)
            except _Invalid as error:
                raise _refused(file, str(error)) from None
            return found


def _refused(file: Path, why: str) -> UsageError:
    return UsageError(f"cannot load {one_line(file.name, 120)}: it is damaged ({why}); {_TODO}")


class _Invalid(Exception):
    """An invalid header; the text names the fault."""


class _Parser:
    """Parser of a header, with its position in the file."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at, self._values = content, 0, 0

    def header(self) -> Header:
        if self._take(4) != _MAGIC:
            raise _Invalid("it does not begin with GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise _Invalid(f"format version {version} is unknown, or its byte order is not little-endian")
        tensors, fields = self._number("Q"), self._number("Q")
        if tensors > _TENSORS or fields > _FIELDS:
            raise _Invalid(f"it claims {tensors:,} tensors and {fields:,} fields")
        found = Header()
        for _ in range(fields):
            name = self._text(_NAME)
            found.fields[name] = self._value(self._number("I"), name, 0)
        placed = [self._tensor(found) for _ in range(tensors)]
        align = found.fields.get("general.alignment", 32)
        if type(align) is not int or not 0 < align <= 1 << 20 or align & (align - 1):
            raise _Invalid("its alignment is not a power of two")
        begin = -(-self._at // align) * align
        for name, offset, size in placed:
            if begin + offset + size > len(self._content):
                raise _Invalid(f"tensor {one_line(name, 80)} ends beyond the file")
        return found

    def _tensor(self, found: Header) -> tuple[str, int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._text(_NAME)
        dimensions = self._number("I")
        if name in found.tensors:
            raise _Invalid(f"two tensors are named {one_line(name, 80)}")
        if not 0 < dimensions <= _DIMENSIONS:
            raise _Invalid(f"tensor {one_line(name, 80)} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        try:
            block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise _Invalid(f"tensor {one_line(name, 80)} has unknown type {kind}") from None
        count = 1
        for size in shape:
            count *= size
        if count < 1 or shape[0] % block:
            raise _Invalid(f"tensor {one_line(name, 80)} cannot have the shape {[*shape]}")
        found.tensors[name] = shape
        return name, offset, count // block * nbytes

    def _value(self, kind: int, name: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text(len(self._content))
        if kind != _ARRAY or depth > 2:
            raise _Invalid(f"field {one_line(name, 80)} has unknown type {kind}")
        inner, count = self._number("I"), self._number("Q")
        self._values += count
        if self._values > _VALUES:
            raise _Invalid(f"field {one_line(name, 80)} claims {count:,} values")
        if inner in _SCALARS:
            self._take(count * struct.calcsize("<" + _SCALARS[inner]))
        else:
            for _ in range(count):
                self._value(inner, name, depth + 1)
        return count

    def _text(self, most: int) -> str:
        size = self._number("Q")
        if size > most:
            raise _Invalid(f"it claims a string of {size:,} bytes")
        return self._take(size).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))[0]

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._content):
            raise _Invalid("it ends in the middle of its header")
        found = self._content[self._at : self._at + size]
        self._at += size
        return found


def _check_sizes(header: Header) -> None:
    """Refuse sizes larger than the tensors': the library would create weights that the file lacks."""
    layers = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    widest = max((size for shape in header.tensors.values() for size in shape), default=0)
    for name, value in header.fields.items():
        last = name.rpartition(".")[2]
        most = {"block_count": len(layers), "embedding_length": widest, "feed_forward_length": widest}.get(last)
        if name.count(".") == 1 and most is not None and (type(value) is not int or not 0 <= value <= most):
            raise _Invalid(
                f"its {one_line(name, 80)} is {one_line(str(value), 40)} and its tensors allow at most {most}"
            )


def check_text(header: Header, file: Path) -> None:
    """Refuse a file without token embeddings, which is not a language model."""
    if "token_embd.weight" not in header.tensors:
        raise UsageError(
            f"cannot load {file.name}: it has no token_embd.weight, so it is not a language model; {_TODO}"
        )
