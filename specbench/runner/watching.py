"""Watching a run: the machine is looked at before, between and behind its stretches, and never on a request's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from specbench.hardware.watching import Seen, between, see
from specbench.results.attachment import Keeps
from specbench.results.watch import WATCH, Watch

#: Seconds between two looks, each of which takes some milliseconds.
APART_S = 4.0

#: In a long run they are as many times further apart: its file is written anew with each of them.
APART_SHARE = 0.01


class Watcher:
    """Takes the looks of a run and keeps them in its folder, after those that are there. The clock is in seconds."""

    def __init__(
        self, folder: Keeps, look: Callable[[], Seen] = see, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._look, self._clock = folder, look, clock
        self._found = folder.read(WATCH) or Watch()
        self._first: Seen | None = None
        self._last: Seen | None = None

    def before(self, segment: int) -> None:
        """Look, unless the last look of this process was a moment ago; ``segment`` comes next."""
        if self._first is None or self._last is None:
            self._first = self._last = self._look()  # what happened before it was no run
            return
        now = self._clock()
        if now - self._last.at_s >= max(APART_S, APART_SHARE * (now - self._first.at_s)):
            self._keep(segment)

    def behind(self, segment: int) -> None:
        """Look after the last segment, and not where nothing was decoded."""
        if self._last is not None:
            self._keep(segment + 1)

    def _keep(self, segment: int) -> None:
        assert self._last is not None
        now = self._look()
        look = between(self._last, now, segment)
        if look is not None:
            self._found, self._last = Watch(looks=[*self._found.looks, look]), now
        self._folder.write(WATCH, self._found)
