"""Read the objects of a data file in JSON lines, JSON (a list or one object) or Parquet, each with its number.

The suffix decides the format, see :data:`FORMATS`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.common import (
    EnvironmentRefused,
    SpecbenchError,
    damaged,
    json_object,
    open_file,
    read_json,
    read_json_lines,
    unreadable,
)

#: Suffixes of the files that :func:`numbered` reads.
FORMATS = (".jsonl", ".jsonl.gz", ".json", ".parquet")

TODO = "fix it, or fetch it again"

#: Most bytes of a data file: the largest published file of a task here has a little over 1 GiB.
LARGEST = 4 << 30

# Most bytes of a Parquet file's rows in memory, all together and in one batch. Batches are small, because a value that
# is stored once can appear in a million rows.
_UNPACKED, _BATCH = 2 << 30, 64


def numbered(path: Path, todo: str = TODO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a data file in order, each with the number of its line or row, from 1.

    Errors end with ``todo``, which says what to do.
    """
    if path.suffix == ".parquet":
        return _of_parquet(path, todo)
    if path.suffix == ".json":
        return _of_list(path, todo)
    return read_json_lines(path, todo, nan=True)  # EvalPlus's data contain Infinity


def row_place(path: Path, number: int) -> str:
    """The name of a row of :func:`numbered` in errors: "FILE line 3" for JSON lines, else "FILE row 3"."""
    return f"{path} {'row' if path.suffix in ('.json', '.parquet') else 'line'} {number}"


def check_size(path: Path, size: int, limit: int = LARGEST, todo: str = TODO) -> None:
    """Refuse a file that is too large before reading any of it."""
    if size > limit:
        raise unreadable(path, f"larger than the {limit >> 20} MiB that a data file may have", todo)


def _of_list(path: Path, todo: str) -> Iterator[tuple[int, dict[str, Any]]]:
    entries = read_json(path, todo)
    if isinstance(entries, dict):  # a file of one object
        entries = [entries]
    if not isinstance(entries, list):
        raise damaged(path, "not a JSON list", todo)
    for number, entry in enumerate(entries, 1):
        yield number, json_object(entry, row_place(path, number), todo)


def _of_parquet(path: Path, todo: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError:
        raise EnvironmentRefused(
            f"{path.name} is Parquet, and pyarrow, which reads it, is not installed: pip install 'specbench-llm[eval]'"
        ) from None
    number = size = 0
    try:
        with open_file(path, todo) as stream:
            check_size(path, os.fstat(stream.fileno()).st_size, todo=todo)
            with parquet.ParquetFile(stream) as file:
                for batch in file.iter_batches(_BATCH, use_threads=False):
                    size += batch.nbytes
                    check_size(path, size, _UNPACKED, todo)
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
    except (SpecbenchError, GeneratorExit):
        raise
    except Exception as error:  # pyarrow raises exceptions of many kinds
        after = f", after row {number}" if number else ""
        raise unreadable(path, f"not a complete Parquet file{after}: {error}", todo) from None
