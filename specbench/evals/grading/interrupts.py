"""Defer Ctrl-C and SIGTERM while code runs that must not be interrupted at an arbitrary place."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Note Ctrl-C (and SIGTERM where it raises) inside a ``with`` block, and raise it at its end.

    A KeyboardInterrupt between taking a lock of a thread pool and the ``with`` that releases it would leave the lock
    locked for ever. In other threads, and where Ctrl-C is ignored, this does nothing.
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
        """Raise the noted signal, if any."""
        if self._noted is None:
            return
        number, self._noted = self._noted, None
        try:
            self._before[number](number, None)  # the former handler may react, or raise an interrupt of its own
        finally:
            self._noted = None  # a handler may have called another one, which noted the signal again
        raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if kind is None:
            self.look()
