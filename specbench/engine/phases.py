"""Stopwatch of ``--trace``: time of each phase of a step."""

from __future__ import annotations

from collections.abc import Callable

from specbench.results import PHASES


class Phases:
    """Split one step's time by phase; every mark waits for the device, so reported speeds are measured without it.

    ``clock``: returns nanoseconds; ``settle``: waits until the device has finished all work.
    """

    def __init__(self, clock: Callable[[], int], settle: Callable[[], None]) -> None:
        self._clock = clock
        self._settle = settle
        self._at = clock()
        self._spent: dict[str, int] = dict.fromkeys(PHASES, 0)

    def mark(self, phase: str) -> None:
        """End ``phase``, which began at the previous mark."""
        self._settle()
        now = self._clock()
        self._spent[phase] += now - self._at
        self._at = now

    @property
    def spent(self) -> dict[str, int]:
        """Nanoseconds of each phase so far."""
        return self._spent
