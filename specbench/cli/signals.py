"""Treat SIGTERM like Ctrl-C: finished requests are kept, and the exit code differs."""

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

# A signal that reaches a process twice, from its group and from its parent, arrives within this time.
_SAME_S = 0.5
_SWALLOWED_S = 0.01  # until it is raised again


@dataclass
class Termination:
    """Whether SIGTERM has come."""

    came: bool = False


@contextmanager
def termination() -> Iterator[Termination]:
    """Inside the ``with`` block, raise KeyboardInterrupt for SIGTERM, too; code that delays Ctrl-C also delays it.

    A second signal within half a second counts as the same one. A signal during a finalizer would be lost, because
    finalizers swallow exceptions, so it is raised again afterwards. Threads and existing SIGTERM handlers are not
    affected.
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
        # Background jobs of a shell ignore Ctrl-C.
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
        last = math.inf  # a pending signal must not end anything any more
        for each in again:
            each.cancel()
            each.join()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
