"""Streams: stdin, stdout and stderr that bear whatever is at their ends, and pass on nobody's control sequences."""

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

#: Exit code of a command whose output could not be written; what it made is kept.
UNWRITTEN = 3

# What the bars of libraries need: colours, and the lines they draw over. Rich's consoles write past this.
_BARS = re.compile(r"(\x1b\[[0-9;]*[mAK]|\r)")


class _Lasting(io.RawIOBase):
    """A descriptor to write to, which takes everything: what cannot be written any more is dropped.

    A reader that has gone, a full disk or a terminal that hung up ends no measurement. ``lost`` says why bytes were
    dropped.
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
            except BlockingIOError:  # nobody reads yet from what another program made non-blocking
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.lost = error
        return wanted


class Stream(io.TextIOWrapper):
    """stdout or stderr that bears any end, has any letter, and obeys no control sequences but rich's own."""

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
    """Make the three standard streams such that nothing about them can end a command. Once, when a process starts.

    One that was closed becomes an empty file, or whatever is opened next would get its number and what is printed.
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
        if not is_size(os.environ.get(name, "1")):  # help is laid out by it, and fails
            del os.environ[name]
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        was = getattr(sys, name) or open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if isinstance(was, io.TextIOWrapper) and not isinstance(was, Stream):
            setattr(sys, name, Stream(was))


def closing(code: int) -> int:
    """Write what is left in the streams; ``code``, or :data:`UNWRITTEN` where all went well and stdout did not take it.

    A reader that has gone, as in ``specbench list methods | head``, had enough.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # no stream of ours
            stream.flush()
    out = sys.stdout
    lost = out.raw.lost if isinstance(out, Stream) else None
    if lost is None or lost.errno == errno.EPIPE or code != 0:
        return code
    sys.stderr.write(f"error: stdout takes no more ({lost.strerror}); make room there. Finished work is kept\n")
    sys.stderr.flush()
    return UNWRITTEN
