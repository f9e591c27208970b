"""The program's side for a program that reads standard input and prints, run again for every input.

Descriptors 0 and 1 are memory files made before the process is confined, so that ``input()``, ``open(0)`` and
``os.write(1, …)`` work as in a shell and the limit on a file's size bounds the output. The program may patch everything
here: only a text leaves this process, and the judge compares it. Standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import gc
import os
import resource
import signal
import sys
import types
from collections.abc import Sequence
from typing import Any

PRINTED = 6 << 20
"""Bytes that a script may print and still be compared; with JSON around them they fit into a frame of the channel."""

_STACK = 96 << 20  # for deep recursion, which takes C's stack as well before Python 3.11; mmap leaves a gap of 128 MiB

_STREAMS = (("stdin", 0, "r", "surrogateescape"), ("stdout", 1, "w", "strict"), ("stderr", 2, "w", "replace"))

_CAUGHT = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGINT, signal.SIGTERM)


class Script:
    """A script, its input and its output."""

    def __init__(self) -> None:
        """Create the two memory files, which is impossible once the process is confined."""
        self._stdin, self._stdout = (os.memfd_create(name) for name in ("stdin", "stdout"))
        hard = resource.getrlimit(stack := resource.RLIMIT_STACK)[1]
        resource.setrlimit(stack, (_STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard), hard))
        self._codes: list[types.CodeType] = []
        self._builtins: dict[str, Any] = {}
        self._handlers = {number: signal.getsignal(number) for number in _CAUGHT}

    def load(self, sources: Sequence[str]) -> None:
        """Compile ``sources`` without running them."""
        self._codes = [compile(source, "<solution>", "exec", dont_inherit=True) for source in sources]
        builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # of the module site, which is left out
        self._builtins = dict(builtins.__dict__)

    def run(self, given: str) -> str:
        """Run the script on one input and return what it prints; names, files, builtins and timers are fresh.

        SystemExit with any status is a normal end.

        Raises:
            OverflowError: it printed more than PRINTED.
            BaseException: what it raised.
        """
        self._open(given)
        try:
            self._execute()
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
        finally:
            self._restore()
        size = os.fstat(self._stdout).st_size
        if size > PRINTED:
            raise OverflowError(f"it printed more than {PRINTED >> 20} MiB")
        return os.pread(self._stdout, size, 0).decode(errors="replace")

    def _execute(self) -> None:
        """Run from the first line to what an interpreter does at its end: atexit functions, destructors, flushing."""
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            for code in self._codes:
                exec(code, module.__dict__)
        except SystemExit:
            pass
        finally:
            sys.settrace(None)
            sys.setprofile(None)
        atexit._run_exitfuncs()
        _flush()
        sys.modules["__main__"] = types.ModuleType("__main__")
        del module
        gc.collect()  # destructors may print, and unclosed files are written when they are destroyed
        _flush()

    def _restore(self) -> None:
        builtins.__dict__.clear()  # first, because everything after needs them
        builtins.__dict__.update(self._builtins)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        gc.enable()

    def _open(self, given: str) -> None:
        for name, *_ in _STREAMS:
            for known_as in (name, f"__{name}__"):
                # Before the file is emptied, because one may still have something to write.
                setattr(sys, known_as, None)
        for fd, kept in enumerate((self._stdin, self._stdout)):
            os.ftruncate(kept, 0)
            os.lseek(kept, 0, os.SEEK_SET)
            os.dup2(kept, fd)
        left = memoryview(given.encode(errors="surrogatepass"))
        while left:
            left = left[os.write(self._stdin, left) :]
        os.lseek(self._stdin, 0, os.SEEK_SET)
        for name, fd, mode, errors in _STREAMS:
            stream = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115  the script's to close
            for known_as in (name, f"__{name}__"):
                setattr(sys, known_as, stream)


def _flush() -> None:
    for stream in {id(stream): stream for stream in (sys.stdout, sys.__stdout__)}.values():
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
