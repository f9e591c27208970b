"""Ctrl-C and SIGTERM as facts that are looked at, for parts of the program that they must not break off anywhere."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Notes Ctrl-C, and SIGTERM where that raises too, instead of raising it, within a ``with``.

    A KeyboardInterrupt comes between any two steps of Python, also within the standard library's. Between taking a
    lock of a thread pool and the ``with`` that gives it back, it leaves the lock taken, and then all wait for ever.
    What was noted and not looked at is raised at the end, when nothing is held any more. Where Ctrl-C is not Python's
    to raise, as in the background of a shell, which has it ignored, and in other threads, this does nothing.
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
