"""Keep the other engines of a run idle while one is timed.

CPU time of each engine is read before and after each segment of a row, never during one, and summed over segments until
1% of a core can be distinguished from the kernel's rounding (0.01 s). An engine that used more is stopped by a signal
during the segments of other rows. The recorded idle share is the largest of all windows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from specbench.backends.protocol import Backend
from specbench.common import busy_s, pause, resume

#: Share of a core above which an engine counts as disturbing the timing of others.
LOUD = 0.01

#: Seconds of a window: 1% of it is four of the kernel's ticks.
WINDOW_S = 4.0

#: Seconds between two rows: spinning threads of the previous row go to sleep in this time.
REST_S = 0.1


@dataclass
class _Tally:
    """CPU time of an engine during other rows' segments, in the current window."""

    loudest: float | None = None
    seconds: float = 0.0
    taken: float = 0.0

    def add(self, seconds: float, taken: float) -> bool:
        """Add a segment; return whether it completes a window in which the engine used too much."""
        self.seconds, self.taken = self.seconds + seconds, self.taken + taken
        if self.seconds < WINDOW_S:
            return False
        share = self.taken / self.seconds
        self.loudest = max(self.loudest or 0.0, share)
        self.seconds = self.taken = 0.0
        return share > LOUD


class IdleGuard:
    """Measures how busy a run's engines are while another one is timed, and stops those that are too busy.

    When the guard is closed, also after an error, all engines are resumed.

    Args:
        engines: the started engines by row; all rows of our own engine are ``None``.

    Attributes:
        stopped: rows whose engines are stopped while others are timed.
    """

    def __init__(self, engines: Mapping[str, Backend]) -> None:
        self.stopped: set[str] = set()
        self._engines = dict(engines)
        self._own = psutil.Process()
        # Warm-up is counted separately: it disturbs no timing, and finds busy engines before timing begins.
        self._tallies = {timed: {row: _Tally() for row in (*engines, None)} for timed in (True, False)}
        self._turns: dict[str | None, tuple[float, float]] = {}
        self._last: str | None = None
        self._seen = self._see()

    def __enter__(self) -> IdleGuard:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Resume all engines."""
        for engine in self._engines.values():
            resume(engine.processes())

    def before(self, row: str | None) -> None:
        """Prepare a segment of a row: stop the busy engines of other rows, and resume the row's own."""
        for other in self.stopped - {row}:
            pause(self._engines[other].processes())
        if row in self.stopped:
            resume(self._engines[row].processes())
        if row != self._last:
            time.sleep(REST_S)
            self._last = row
        self._seen = self._see()

    def after(self, row: str | None, *, timed: bool = True) -> None:
        """Count the CPU time of all engines in the segment that has ended.

        Args:
            timed: whether the segment's figures are recorded; else it was a warm-up.
        """
        (began, before), (ended, now) = self._seen, self._see()
        if timed:
            seconds, taken = self._turns.get(row, (0.0, 0.0))
            self._turns[row] = seconds + ended - began, taken + max(0.0, now[row] - before[row])
        for other, tally in self._tallies[timed].items():
            # The difference is negative if a process has ended, since its CPU time is no longer counted.
            loud = other != row and tally.add(ended - began, max(0.0, now[other] - before[other]))
            if loud and other is not None:
                self.stopped.add(other)

    def listen(self) -> None:
        """Measure a window without any segment, so that busy engines are stopped before the first row."""
        self.before(None)
        time.sleep(WINDOW_S)
        self.after(None, timed=False)

    def idle_share(self, row: str | None) -> float | None:
        """Return the largest share of a core that an engine used in a window of other rows' timed segments.

        Args:
            row: row of the engine; ``None`` is our own process.

        Returns:
            None if no window was completed.
        """
        return self._tallies[True][row].loudest

    def cores(self, row: str | None) -> float | None:
        """Return the number of cores that an engine used in its own timed segments.

        Args:
            row: row of the engine; ``None`` is our own process.

        Returns:
            None if it had no segment.
        """
        seconds, taken = self._turns.get(row, (0.0, 0.0))
        return taken / seconds if seconds else None

    def _see(self) -> tuple[float, dict[str | None, float]]:
        """Return the time, and the CPU seconds that each engine has used so far."""
        own = self._own.cpu_times()
        busy: dict[str | None, float] = {row: busy_s(engine.processes()) for row, engine in self._engines.items()}
        busy[None] = own.user + own.system
        return time.monotonic(), busy
