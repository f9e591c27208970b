"""SIGTERM as Ctrl-C: what a scheduler or ``kill`` sends keeps what is finished, and has an exit code of its own."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

# What reaches a process twice, as its group's and as its parent's, comes within that.
_SAME_S = 0.5
_SWALLOWED_S = 0.01  # until it is raised once more


@dataclass
class Termination:
    """Whether SIGTERM has come."""

    came: bool = False


@contextmanager
def termination() -> Iterator[Termination]:
    """Raise KeyboardInterrupt for SIGTERM too, inside; code that delays Ctrl-C delays it too.

    A second one within half a second is the same one. One that comes while a finalizer runs would be lost, since no
    exception leaves that: it is raised again afterwards. Threads, and a handler for SIGTERM that is there, are left
    alone.
    """
    found = Termination()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield found
        return
    usual = signal.getsignal(signal.SIGINT)
    last = -_SAME_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _SAME_S:
            raise KeyboardInterrupt

    def end(number: int, frame: FrameType | None) -> None:
        found.came = True
        now = signal.getsignal(signal.SIGINT)
        # The background of a shell has Ctrl-C ignored.
        (now if callable(now) else interrupt)(signal.SIGINT, frame)

    def unraisable(what: Any) -> None:
        nonlocal last
        if not issubclass(what.exc_type, KeyboardInterrupt):
            hook(what)
            return
        last = -_SAME_S
        number = signal.SIGTERM if found.came else signal.SIGINT
        again.append(threading.Timer(_SWALLOWED_S, signal.pthread_kill, (threading.main_thread().ident, number)))
        again[-1].daemon = True
        again[-1].start()

    again = list[threading.Timer]()
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    signal.signal(signal.SIGTERM, end)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield found
    finally:
        sys.unraisablehook = hook
        last = math.inf  # one that is on its way ends nothing any more
        for each in again:
            each.cancel()
            each.join()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
