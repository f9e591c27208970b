"""Make stdin, stdout and stderr robust: writing never fails, and control sequences in texts are not passed on."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import sys
from typing import TYPE_CHECKING

from specbench.common import SIZES, escape_control, is_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: Exit code of a command whose output could not be written; its files are kept.
UNWRITTEN = 3

# Sequences that progress bars of libraries need: colours and cursor moves. Rich's consoles bypass this.
_BARS = re.compile(r"(\x1b\[[0-9;]*[mAK]|\r)")


class _Lasting(io.RawIOBase):
    """A descriptor for writing that never fails: bytes that cannot be written are dropped.

    A closed pipe, a full disk or a terminal that hung up must not end a measurement. ``lost`` is the reason why bytes
    were dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.lost: OSError | None = None

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        wanted = memoryview(data).nbytes
        while self.lost is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # another program made it non-blocking, and the reader is slow
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.lost = error
        return wanted


class Stream(io.TextIOWrapper):
    """stdout or stderr that never fails, accepts any letter, and passes on only rich's control sequences."""

    def __init__(self, was: io.TextIOWrapper) -> None:
        self.raw = _Lasting(was.fileno())
        buffer = io.BufferedWriter(self.raw)
        encoding, errors, lines = was.encoding, "backslashreplace", was.line_buffering
        super().__init__(buffer, encoding, errors, line_buffering=lines, write_through=True)
        self.rich_proxied_file = io.TextIOWrapper(buffer, encoding, errors, line_buffering=lines, write_through=True)

    def write(self, text: str, /) -> int:
        pieces = _BARS.split(text) if self.raw.fileno() == 2 else [text]
        super().write("".join(piece if at % 2 else escape_control(piece) for at, piece in enumerate(pieces)))
        return len(text)


def open_streams() -> None:
    """Make the three standard streams robust, once, when a process starts.

    A closed stream becomes an empty file; otherwise the next opened file would get its number, and the output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    for name in SIZES:
        if not is_size(os.environ.get(name, "1")):  # the help uses it for its layout and fails
            del os.environ[name]
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        was = getattr(sys, name) or open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if isinstance(was, io.TextIOWrapper) and not isinstance(was, Stream):
            setattr(sys, name, Stream(was))


def closing(code: int) -> int:
    """Flush the streams; return ``code``, or :data:`UNWRITTEN` if the command succeeded but stdout failed.

    A reader that closed the pipe, as in ``specbench list methods | head``, is not an error.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # not our stream
            stream.flush()
    out = sys.stdout
    lost = out.raw.lost if isinstance(out, Stream) else None
    if lost is None or lost.errno == errno.EPIPE or code != 0:
        return code
    sys.stderr.write(f"error: cannot write to stdout: {lost.strerror}; free space there. Finished work is kept\n")
    sys.stderr.flush()
    return UNWRITTEN
