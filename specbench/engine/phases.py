"""Where a step's time goes: the stop-watch of ``--trace``. No torch."""

from __future__ import annotations

from collections.abc import Callable

from specbench.results import PHASES


class Phases:
    """Splits one step's time; every mark waits for the device, which is why headline figures are taken without it.

    ``clock``: nanoseconds; ``settle``: returns when the device has nothing left to do.
    """

    def __init__(self, clock: Callable[[], int], settle: Callable[[], None]) -> None:
        self._clock = clock
        self._settle = settle
        self._at = clock()
        self._spent: dict[str, int] = dict.fromkeys(PHASES, 0)

    def mark(self, phase: str) -> None:
        """Ends ``phase``, which began at the mark before it."""
        self._settle()
        now = self._clock()
        self._spent[phase] += now - self._at
        self._at = now

    @property
    def spent(self) -> dict[str, int]:
        """Nanoseconds of each phase so far."""
        return self._spent
