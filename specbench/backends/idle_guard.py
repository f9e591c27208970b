"""Keeps the other engines of a run quiet while one is timed.

CPU time of each engine is read before and after each segment of a row, never within it, and summed over segments until
1% of a core can be told from the kernel's rounding (0.01 s). An engine that took more is stopped by signal during the
turns of other rows. The recorded idle share is the largest of all windows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from specbench.backends.protocol import Backend
from specbench.common import busy_s, pause, resume

#: Share of a core above which an engine disturbs what is timed beside it.
LOUD = 0.01

#: Seconds of a window: 1% of it is four of the kernel's ticks.
WINDOW_S = 4.0

#: Seconds between two rows: threads of the last one that wait for more work by spinning have gone to sleep by then.
REST_S = 0.1


@dataclass
class _Tally:
    """What somebody took of a core while others had their turn, in the window that is open."""

    loudest: float | None = None
    seconds: float = 0.0
    taken: float = 0.0

    def add(self, seconds: float, taken: float) -> bool:
        """Counts a stretch; says whether it has filled a window that was too loud."""
        self.seconds, self.taken = self.seconds + seconds, self.taken + taken
        if self.seconds < WINDOW_S:
            return False
        share = self.taken / self.seconds
        self.loudest = max(self.loudest or 0.0, share)
        self.seconds = self.taken = 0.0
        return share > LOUD


class IdleGuard:
    """Who of a run's engines is timed now, and how busy the others are meanwhile.

    At its end, however that comes, all of them are awake.

    Args:
        engines: those that were started, by their rows; the rows of our own engine are ``None``.

    Attributes:
        stopped: rows whose engines are stopped while others are timed.
    """

    def __init__(self, engines: Mapping[str, Backend]) -> None:
        self.stopped: set[str] = set()
        self._engines = dict(engines)
        self._own = psutil.Process()
        # Warm-up is counted apart: nobody is disturbed by it, and it should show who is loud before that matters.
        self._tallies = {timed: {row: _Tally() for row in (*engines, None)} for timed in (True, False)}
        self._turns: dict[str | None, tuple[float, float]] = {}
        self._last: str | None = None
        self._seen = self._see()

    def __enter__(self) -> IdleGuard:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Wakes all of them."""
        for engine in self._engines.values():
            resume(engine.processes())

    def before(self, row: str | None) -> None:
        """A stretch of a row begins: who has to be stopped is, and it is awake."""
        for other in self.stopped - {row}:
            pause(self._engines[other].processes())
        if row in self.stopped:
            resume(self._engines[row].processes())
        if row != self._last:
            time.sleep(REST_S)
            self._last = row
        self._seen = self._see()

    def behind(self, row: str | None, *, timed: bool = True) -> None:
        """It has ended.

        Args:
            timed: its figures are recorded; else it was a warm-up.
        """
        (began, before), (ended, after) = self._seen, self._see()
        if timed:
            seconds, taken = self._turns.get(row, (0.0, 0.0))
            self._turns[row] = seconds + ended - began, taken + max(0.0, after[row] - before[row])
        for other, tally in self._tallies[timed].items():
            # Less than nothing where a process has gone and took its count along.
            loud = other != row and tally.add(ended - began, max(0.0, after[other] - before[other]))
            if loud and other is not None:
                self.stopped.add(other)

    def listen(self) -> None:
        """A window in which it is nobody's turn, so that who is loud by itself is stopped before the first row is."""
        self.before(None)
        time.sleep(WINDOW_S)
        self.behind(None, timed=False)

    def idle_share(self, row: str | None) -> float | None:
        """Of a core, taken by an engine in the loudest window of others' timed stretches; ``None``: by our process.

        Returns:
            None where there was no whole window.
        """
        return self._tallies[True][row].loudest

    def cores(self, row: str | None) -> float | None:
        """Cores that an engine kept busy in its own timed stretches; ``None``: our process in those of our rows.

        Returns:
            None where it had no turn.
        """
        seconds, taken = self._turns.get(row, (0.0, 0.0))
        return taken / seconds if seconds else None

    def _see(self) -> tuple[float, dict[str | None, float]]:
        """The time, and the seconds of processor time that each has taken so far."""
        own = self._own.cpu_times()
        busy: dict[str | None, float] = {row: busy_s(engine.processes()) for row, engine in self._engines.items()}
        busy[None] = own.user + own.system
        return time.monotonic(), busy
