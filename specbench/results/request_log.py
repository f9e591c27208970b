"""Append-only log of a run's requests: one JSON line each, on disk before the next request starts."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.common import (
    json_object,
    parse_json,
    read_bytes,
    read_lines,
    sync_folder,
    unreadable,
    write_atomic,
    write_failed,
)

_TODO = "delete that line to go on without its request"


class RequestLog:
    """Writer of ``requests.jsonl``. Every line is complete, even after a crash while one was written.

    ``kept`` is the number of lines.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file and cut off an incomplete last line."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise unreadable(path, "it is not a regular file", "remove it and repeat the command")
            self._end, self.kept = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._end)
            sync_folder(path.parent)
        except OSError as error:
            raise write_failed(error, path) from error

    def append(self, obj: Mapping[str, Any]) -> None:
        """Write one line; it is on disk when this returns.

        If the disk is full, nothing of the line remains. Raises TypeError or ValueError for values that JSON cannot
        hold.
        """
        # ASCII escapes, so that no generated text (such as U+2028) can break a line or an encoder.
        line = json.dumps(obj, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            os.ftruncate(self._fd, self._end)  # remove what an append interrupted by Ctrl-C may have left
            written = 0
            while written < len(line):  # a nearly full disk may accept only a part
                written += os.pwrite(self._fd, line[written:], self._end + written)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails too, the next start cuts the line off
                os.ftruncate(self._fd, self._end)
            raise write_failed(error, self.path, self.kept) from error
        self._end += len(line)
        self.kept += 1

    def read(self) -> Iterator[dict[str, Any]]:
        """Iterate over the lines written so far, see :func:`read_requests`."""
        return (row for _, row in read_requests(self.path))

    def close(self) -> None:
        """Close the file. Closing twice is safe."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def set_aside(path: Path, request_ids: Collection[str]) -> None:
    """Move the lines of some requests to ``*.restarted.jsonl``. No process may have the log open.

    For a damaged line (UsageError) or a full disk (EnvironmentRefused) the log stays unchanged.
    """
    kept, aside = bytearray(), bytearray()
    for where, line in complete_lines(path, _TODO):
        row = json_object(parse_json(line, where, _TODO), where, _TODO)
        (aside if row.get("request_id") in request_ids else kept).extend(line)
    restarted = path.with_suffix(".restarted.jsonl")
    before = read_bytes(restarted, "remove it and repeat the command") if os.path.lexists(restarted) else b""
    if not before.endswith(bytes(aside)):  # otherwise a process was killed between the two writes
        write_atomic(restarted, before + bytes(aside))
    write_atomic(path, bytes(kept))


def read_requests(path: Path, todo: str = _TODO) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the complete lines of a ``requests.jsonl`` as (place for error messages, object).

    Without the file there are no lines. A last line without newline was interrupted and is skipped. ``todo`` is the
    advice in the error for a damaged line.
    """
    for where, line in complete_lines(path, todo):
        yield where, json_object(parse_json(line, where, todo), where, todo)


def complete_lines(path: Path, todo: str) -> Iterator[tuple[str, bytes]]:
    """Iterate over the complete lines as (place for error messages, bytes), blank lines included."""
    if os.path.lexists(path):
        place = f"{path} line"
        for number, line in enumerate(read_lines(path, todo, finished=True), 1):
            yield f"{place} {number}", line


def _whole_lines(fd: int) -> tuple[int, int]:
    """Return (offset after the last newline, number of newlines) of an open file."""
    end = lines = offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        lines += block.count(b"\n")
        if (last := block.rfind(b"\n")) >= 0:
            end = offset + last + 1
        offset += len(block)
    return end, lines
