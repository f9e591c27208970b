"""Observing a sweep: memory is read and the machine is looked at between a worker's stretches, as beside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from specbench.results import BANDWIDTH, WATCH, Attachment, T
from specbench.runner import Monitor
from specbench.sweeps.messages import Conditions

_FIELDS = {BANDWIDTH.name: "bandwidth", WATCH.name: "watch"}  # of Conditions


class Notebook:
    """What is known so far. It stands where a run has its folder: that of a sweep is its driver's."""

    def __init__(self, known: Conditions) -> None:
        self.known = known

    def read(self, what: Attachment[T]) -> T | None:
        found: T = getattr(self.known, _FIELDS[what.name])
        return found

    def write(self, what: Attachment[T], value: T) -> None:
        changed: dict[str, Any] = {_FIELDS[what.name]: value}
        self.known = replace(self.known, **changed)


class Observer:
    """Monitors one part of a sweep; close it when the next part begins.

    Args:
        known: what was found during the part before.
    """

    def __init__(self, known: Conditions, opened: Callable[[Notebook], AbstractContextManager[Monitor]]) -> None:
        self._notebook, self._told = Notebook(known), known
        self._stack = ExitStack()
        self._monitor = self._stack.enter_context(opened(self._notebook))
        self._number: int | None = None

    def before(self, segment: int) -> None:
        """Looks, unless that was done a moment ago.

        Args:
            segment: number of the segment that comes next.
        """
        self._number = segment
        self._monitor.before(segment)

    def after(self) -> None:
        """Looks after the last segment, and not where nothing was decoded since."""
        if self._number is not None:
            self._monitor.after(self._number)
            self._number = None

    def news(self) -> Iterator[Conditions]:
        """All that was found of the part, where that is more than was told before."""
        if self._notebook.known is not self._told:
            self._told = self._notebook.known
            yield self._told

    def close(self) -> None:
        """Gives the probe's memory back."""
        self._stack.close()
