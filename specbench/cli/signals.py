"""SIGTERM as Ctrl-C: what a scheduler or ``kill`` sends keeps what is finished, and has an exit code of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Termination:
    """Whether SIGTERM has come."""

    came: bool = False


@contextmanager
def termination() -> Iterator[Termination]:
    """Raises KeyboardInterrupt for SIGTERM too, inside; whoever holds Ctrl-C back holds that back with it.

    In threads, and where somebody has a handler for SIGTERM, it is left alone. Children that are started anew have the
    usual one.
    """
    found = Termination()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield found
        return

    def end(number: int, frame: FrameType | None) -> None:
        found.came = True
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        else:  # the background of a shell has Ctrl-C ignored
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
