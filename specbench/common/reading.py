"""Read files and replies within limits of size and depth.

Content is not trusted: the result is a value, or a UsageError that names file, line and field and what to do.
:mod:`specbench.common.toml` and :mod:`specbench.common.yaml` read settings files on top of this.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from specbench.common.errors import UsageError, first_fault, one_line

Model = TypeVar("Model", bound=BaseModel)

#: Most bytes of a file that is read at once, and of a line of a file that is read by lines.
LARGEST = 64 << 20

#: Most lines of a file: a compressed file of a megabyte can contain a billion empty lines.
MOST_LINES = 2_000_000

# Most bytes that a compressed file may unpack to; the largest published file has eight million.
_UNPACKED = 1 << 30

_BLOCK = 1 << 20

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


# ------------------------------------------------------------------------------------------------------------- faults


def damaged(where: object, why: str, todo: str) -> UsageError:
    """The error for damaged content.

    Args:
        todo: what to do, as an imperative.
    """
    return UsageError(f"{one_line(str(where), 400)} is damaged ({one_line(why)}); {todo}")


def unreadable(where: object, why: str, todo: str) -> UsageError:
    """The error for content that cannot be read, or has another format; arguments as in :func:`damaged`."""
    return UsageError(f"{one_line(str(where), 400)} cannot be read ({one_line(why)}); {todo}")


# -------------------------------------------------------------------------------------------------------------- bytes


def open_file(path: Path, todo: str) -> BinaryIO:
    """An ordinary file, open to read.

    Raises:
        UsageError: it is missing, not readable, or not an ordinary file (a pipe without a writer would never open).
    """
    try:
        # Without O_NONBLOCK a pipe waits for a writer; ordinary files are not affected.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unreadable(path, _reason(error), todo) from None
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise unreadable(path, f"{_KINDS.get(kind, 'a device')}, where a file is needed", todo)
    return cast(BinaryIO, os.fdopen(handle, "rb"))


def read_bytes(path: Path, todo: str, limit: int = LARGEST) -> bytes:
    """The content of a file.

    Args:
        limit: most bytes.
    """
    blocks, size = [], 0
    with open_file(path, todo) as file:
        try:
            while size <= limit and (block := file.read(_BLOCK)):
                blocks.append(block)
                size += len(block)
        except OSError as error:
            raise unreadable(path, _reason(error), todo) from None
    if size > limit:
        raise unreadable(path, f"larger than {_size(limit)}, the limit for such a file", todo)
    return b"".join(blocks)


def read_text(path: Path, todo: str, limit: int = LARGEST) -> str:
    """The content of a file in UTF-8, without a byte order mark; arguments and errors as of :func:`read_bytes`."""
    content = read_bytes(path, todo, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise unreadable(path, f"line {line} is not UTF-8", todo) from None


# --------------------------------------------------------------------------------------------------------------- JSON


def parse_json(content: bytes | str, where: object, todo: str, *, nan: bool = False) -> Any:
    """The value of a JSON text.

    The parser is pydantic's: as fast as the standard library's, and it refuses what would end in a traceback there or
    later: over 200 levels of brackets, numbers of over 4,300 digits, and halves of surrogate pairs, which no tokenizer,
    terminal or file accepts. An object with a duplicate key is refused, because readers differ in which value counts.

    Args:
        nan: accept NaN and Infinity, which are not JSON but occur in published data.
    """
    try:
        content = content.encode() if isinstance(content, str) else content.removeprefix(codecs.BOM_UTF8)
        value = from_json(content, allow_inf_nan=nan)
        # More quotes before colons than keys: a duplicate key, or a string that looks like one.
        if content.count(b'":') + content.count(b'" :') - content.count(b'\\":') > _keys(value):
            json.loads(content, object_pairs_hook=_without_doubles)
        return value
    except ValueError as error:  # UnicodeEncodeError for a str with half a surrogate pair
        if isinstance(content, bytes) and not _is_utf8(content):
            raise damaged(where, "not UTF-8 text", todo) from None
        reason = str(error).replace("recursion limit exceeded", "nested too deeply")
        raise damaged(where, f"not JSON: {reason}", todo) from None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _keys(value: Any) -> int:
    """Total number of keys in the objects of a JSON value."""
    found, values = 0, [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            found += len(value)
            value = value.values()
        elif not isinstance(value, list):
            continue
        values.extend([each for each in value if type(each) in _NESTED])
    return found


_NESTED = (dict, list)


def _without_doubles(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object with a duplicate key."""
    keys = [key for key, _ in pairs]
    if len({*keys}) < len(keys):
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise ValueError(f"the key '{one_line(twice, 40)}' is there twice")


def read_json(path: Path, todo: str, limit: int = LARGEST) -> Any:
    """The value in a JSON file; arguments and errors as of :func:`read_bytes` and :func:`parse_json`."""
    return parse_json(read_bytes(path, todo, limit), path, todo)


def read_json_object(path: Path, todo: str = "restore it or repeat the run") -> dict[str, Any]:
    """The object in a JSON file."""
    return json_object(read_json(path, todo), path, todo)


def json_object(content: Any, where: object, todo: str) -> dict[str, Any]:
    """A JSON object; arguments and errors as of :func:`parse_json`."""
    if not isinstance(content, dict):
        raise damaged(where, "not a JSON object", todo)
    return content


def in_64_bits(content: Any, where: object, todo: str) -> None:
    """Refuse numbers of a JSON value that tables and float arithmetic cannot represent.

    JSON allows integers of any length, and 1e999, which is infinite.
    """
    values = [content]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise damaged(where, "a number that is not finite", todo)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise damaged(where, f"a number of more than 64 bits, {one_line(str(value), 20)}", todo)


# -------------------------------------------------------------------------------------------------------------- lines


def read_lines(
    path: Path, todo: str, *, finished: bool = False, longest: int = LARGEST, most: int = MOST_LINES
) -> Iterator[bytes]:
    """Yield the lines of a file with their line breaks; a ``.gz`` file is unpacked.

    Args:
        finished: leave out a last line without a line break, which a kill has cut off; otherwise it is returned, too.
        longest: most bytes of a line.
        most: most lines.
    """
    number = size = 0
    with open_file(path, todo) as file:
        packed = path.suffix == ".gz"
        lines = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        try:
            while line := lines.readline(longest + 1):
                number += 1
                size += len(line)
                if packed and size > _UNPACKED:
                    raise unreadable(path, f"it unpacks to more than {_size(_UNPACKED)}", todo)
                if len(line) > longest:
                    raise unreadable(f"{path} line {number}", f"longer than {_size(longest)}", todo)
                if finished and not line.endswith(b"\n"):
                    return
                if number > most:
                    raise unreadable(path, f"more than {most:,} lines", todo)
                yield line
        except EOFError:
            raise unreadable(path, f"the compressed file is truncated after line {number}", todo) from None
        except (OSError, zlib.error) as error:
            raise unreadable(path, f"after line {number}: {_reason(error)}", todo) from None


def read_json_lines(
    path: Path, todo: str, *, nan: bool = False, finished: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with the number of its line; blank lines are skipped."""
    for number, line in enumerate(read_lines(path, todo, finished=finished), 1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if line.strip():
            where = f"{path} line {number}"
            yield number, json_object(parse_json(line, where, todo, nan=nan), where, todo)


# -------------------------------------------------------------------------------------------------- what content says


def validate(model: type[Model], content: Any, where: object, todo: str) -> Model:
    """Validate content as a model.

    Raises:
        UsageError: a field is missing, unknown, or of a wrong type or value; names the first.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise damaged(where, first_fault(error), todo) from None


def schema_version(
    content: Mapping[str, Any], where: object, newest: int, todo: str, *, field: str = "schema_version"
) -> int:
    """The schema version of a file: an integer of at least 1, not ``true``, "1" or 1.0.

    Args:
        newest: the last version that this specbench reads.
        field: name of the version field.
    """
    found = content.get(field)
    if type(found) is not int or found < 1:
        had = f"its {field} is {one_line(repr(found), 40)}" if field in content else f"it has no {field}"
        raise damaged(where, f"{had}, which must be an integer of at least 1", todo)
    if found > newest:
        raise UsageError(
            f"{one_line(str(where), 400)} was written by a newer specbench (schema {one_line(str(found), 40)}, this one"
            f" reads up to {newest}); upgrade specbench-llm"
        )
    return found


def parse_count(text: str) -> int | None:
    """Parse a non-negative integer of at most 18 digits; return None otherwise.

    ``int`` reads thousands of digits slowly and raises its own error for more.
    """
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def short_number(number: float) -> str:
    """Format a number from a file in few digits; JSON integers may be too large for floats."""
    if isinstance(number, float):
        return f"{number:g}"
    most = 10**300
    return f"{float(max(-most, min(most, number))):g}"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
