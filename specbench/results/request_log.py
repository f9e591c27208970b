"""The log of a run's requests: one JSON line each, on disk before the next request starts."""

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
    """Append-only ``requests.jsonl``. Every line in it is whole, whatever happened while one was written.

    Only the process that opened it writes to it: a child that a plug-in forked ends instead. ``kept`` counts the lines.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the file, and cuts off a last line that a kill has torn."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise unreadable(path, "it is no ordinary file", "remove it and repeat the command")
            self._end, self.kept = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._end)
            sync_folder(path.parent)
        except OSError as error:
            raise write_failed(error, path) from error

    def append(self, obj: Mapping[str, Any]) -> None:
        """Write one line; it is on disk when this returns. On a full disk this line leaves no trace; TypeError or
        ValueError: not JSON.
        """
        # ASCII escapes, so that no text a model wrote (U+2028) can break a line or an encoder.
        line = json.dumps(obj, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            os.ftruncate(self._fd, self._end)  # drops what an append that Ctrl-C broke off may have left
            written = 0
            while written < len(line):  # a nearly full disk takes a part first and refuses the rest
                written += os.pwrite(self._fd, line[written:], self._end + written)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # if even this fails, the next start cuts the line off
                os.ftruncate(self._fd, self._end)
            raise write_failed(error, self.path, self.kept) from error
        self._end += len(line)
        self.kept += 1

    def read(self) -> Iterator[dict[str, Any]]:
        """The lines written so far, see :func:`read_requests`."""
        return (row for _, row in read_requests(self.path))

    def close(self) -> None:
        """Releases the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def set_aside(path: Path, request_ids: Collection[str]) -> None:
    """Take requests out of a log that no process has open; their lines stay in ``*.restarted.jsonl``.

    Where a line is damaged (UsageError) or the disk is full (EnvironmentRefused), the log stays as it was.
    """
    kept, aside = bytearray(), bytearray()
    for where, line in complete_lines(path, _TODO):
        row = json_object(parse_json(line, where, _TODO), where, _TODO)
        (aside if row.get("request_id") in request_ids else kept).extend(line)
    beside = path.with_suffix(".restarted.jsonl")
    before = read_bytes(beside, "remove it and repeat the command") if os.path.lexists(beside) else b""
    if not before.endswith(bytes(aside)):  # else a kill came between the two: they are there already
        write_atomic(beside, before + bytes(aside))
    write_atomic(path, bytes(kept))


def read_requests(path: Path, todo: str = _TODO) -> Iterator[tuple[str, dict[str, Any]]]:
    """The complete lines of a ``requests.jsonl``, each with how an error names it; none if it does not exist yet.

    A last line without its newline was cut off by a kill and is skipped. ``todo`` is advice where a line is damaged.
    """
    for where, line in complete_lines(path, todo):
        yield where, json_object(parse_json(line, where, todo), where, todo)


def complete_lines(path: Path, todo: str) -> Iterator[tuple[str, bytes]]:
    """The same as they are written; a blank one is a line like others."""
    if os.path.lexists(path):
        place = f"{path} line"
        for number, line in enumerate(read_lines(path, todo, finished=True), 1):
            yield f"{place} {number}", line


def _whole_lines(fd: int) -> tuple[int, int]:
    """(offset after the last newline, number of newlines) of an open file, read in blocks."""
    end = lines = offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        lines += block.count(b"\n")
        if (last := block.rfind(b"\n")) >= 0:
            end = offset + last + 1
        offset += len(block)
    return end, lines
