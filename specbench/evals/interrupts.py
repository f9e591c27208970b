"""Ctrl-C as a fact that is looked at, for a part of the program that it must not break off just anywhere."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Notes Ctrl-C instead of raising it, within a ``with``.

    A KeyboardInterrupt comes between any two steps of Python, also within the standard library's. Between taking a
    lock of a thread pool and the ``with`` that gives it back, it leaves the lock taken, and then all wait for ever.
    What was noted and not looked at is raised at the end, when nothing is held any more. Where Ctrl-C is not Python's
    to raise, as in the background of a shell, which has it ignored, and in other threads, this does nothing.
    """

    def __init__(self) -> None:
        self._noted = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and callable(before := signal.getsignal(signal.SIGINT)):
            self._before = before
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True

    def look(self) -> None:
        """Raises what was noted.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.look()
