"""Observing a sweep: memory is read and the machine is looked at between a worker's stretches, as beside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from specbench.results.attachment import Attachment, T
from specbench.results.bandwidth import BANDWIDTH
from specbench.results.watch import WATCH
from specbench.runner.bandwidth import Beside
from specbench.runner.watching import Watcher
from specbench.sweeps.task import Conditions

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
    """Takes the readings and looks of one part of a sweep, after the ``known`` ones; close it when the next part
    begins.
    """

    def __init__(self, known: Conditions, opened: Callable[[Notebook], AbstractContextManager[Beside | None]]) -> None:
        self._notebook, self._told = Notebook(known), known
        self._stack = ExitStack()
        self._bandwidth = self._stack.enter_context(opened(self._notebook))
        self._watcher = Watcher(self._notebook)
        self._number: int | None = None

    def before(self, segment: int) -> None:
        """Read and look, unless that was done a moment ago; ``segment`` comes next."""
        self._number = segment
        self._watcher.before(segment)
        if self._bandwidth:
            self._bandwidth.before(segment)

    def behind(self) -> None:
        """Reads and looks behind the last stretch, and not where nothing was decoded since."""
        if self._number is not None:
            if self._bandwidth:
                self._bandwidth.behind(self._number)
            self._watcher.behind(self._number)
            self._number = None

    def news(self) -> Iterator[Conditions]:
        """All that was found of the part, where that is more than was told before."""
        if self._notebook.known is not self._told:
            self._told = self._notebook.known
            yield self._told

    def close(self) -> None:
        """Gives the probe's memory back."""
        self._stack.close()
