"""Ctrl-C and SIGTERM as facts that are looked at, for parts of the program that they must not break off anywhere."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Notes Ctrl-C (and SIGTERM where it raises) within a ``with`` instead of raising it, and raises it at the end.

    A KeyboardInterrupt between taking a lock of a thread pool and the ``with`` that releases it would leave the lock
    taken for ever. In other threads, and where Ctrl-C is ignored, this does nothing.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number

    def look(self) -> None:
        """Raises what was noted."""
        if self._noted is None:
            return
        number, self._noted = self._noted, None
        try:
            self._before[number](number, None)  # it may want to know, or raise an interrupt of its own
        finally:
            self._noted = None  # one handler may have called another, which notes it once more
        raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if kind is None:
            self.look()
