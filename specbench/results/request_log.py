"""The log of a run's requests: one JSON line each, on disk before the next request starts."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.common import UsageError
from specbench.common.files import refused, sync_folder


class RequestLog:
    """Append-only ``requests.jsonl``. Every line in it is whole, whatever happened while one was written.

    Attributes:
        kept: number of lines on disk.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the file, and cuts off a last line that a kill has torn."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._end, self.kept = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._end)
            sync_folder(path.parent)
        except OSError as error:
            raise refused(error, path) from error

    def append(self, obj: Mapping[str, Any]) -> None:
        """Writes one line; it is on disk when this returns.

        Raises:
            EnvironmentRefused: the disk is full; the lines before this one are kept and this one leaves no trace.
            TypeError, ValueError: ``obj`` is not JSON (nan is not).
        """
        # ASCII escapes, so that no text a model wrote (lone surrogates, U+2028) can break a line or an encoder.
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
            raise refused(error, self.path, self.kept) from error
        self._end += len(line)
        self.kept += 1

    def read(self) -> Iterator[dict[str, Any]]:
        """The lines written so far, see :func:`read_requests`."""
        return read_requests(self.path)

    def close(self) -> None:
        """Releases the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def read_requests(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a ``requests.jsonl``; none if it does not exist yet.

    A last line without its newline was cut off by a kill: it never counted, and is skipped.

    Raises:
        UsageError: another line is not a JSON object; names its number.
    """
    for number, line in enumerate(whole_lines(path), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UsageError(f"{path} line {number} is damaged; delete that line to go on without its request")
        yield row


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file but a last one without its newline; none if it does not exist yet."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _whole_lines(fd: int) -> tuple[int, int]:
    """(offset after the last newline, number of newlines) of an open file, read in blocks."""
    end = lines = offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        lines += block.count(b"\n")
        if (last := block.rfind(b"\n")) >= 0:
            end = offset + last + 1
        offset += len(block)
    return end, lines
