"""Monitor the machine between a worker's segments, as in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from specbench.results import BANDWIDTH, WATCH, Attachment, T
from specbench.runner import Monitor
from specbench.sweeps.messages import Conditions

_FIELDS = {BANDWIDTH.name: "bandwidth", WATCH.name: "watch"}  # fields of Conditions


class Notebook:
    """The readings so far, in place of a run's folder, because a sweep's folder belongs to its driver."""

    def __init__(self, known: Conditions) -> None:
        self.known = known

    def read(self, what: Attachment[T]) -> T | None:
        found: T = getattr(self.known, _FIELDS[what.name])
        return found

    def write(self, what: Attachment[T], value: T) -> None:
        changed: dict[str, Any] = {_FIELDS[what.name]: value}
        self.known = replace(self.known, **changed)


class Observer:
    """Monitor one part of a sweep; close it when the next part begins.

    Args:
        known: readings of the part before.
    """

    def __init__(self, known: Conditions, opened: Callable[[Notebook], AbstractContextManager[Monitor]]) -> None:
        self._notebook, self._reported = Notebook(known), known
        self._stack = ExitStack()
        self._monitor = self._stack.enter_context(opened(self._notebook))
        self._number: int | None = None

    def before(self, segment: int) -> None:
        """Sample and read, unless that was done recently.

        Args:
            segment: number of the next segment.
        """
        self._number = segment
        self._monitor.before(segment)

    def after(self) -> None:
        """Sample and read after the last segment, if anything was decoded."""
        if self._number is not None:
            self._monitor.after(self._number)
            self._number = None

    def news(self) -> Iterator[Conditions]:
        """The readings of the part, if there are new ones."""
        if self._notebook.known is not self._reported:
            self._reported = self._notebook.known
            yield self._reported

    def close(self) -> None:
        """Free the probe's memory."""
        self._stack.close()
