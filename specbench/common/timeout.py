"""A guest's call that takes longer than it may is broken off, as far as Python can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specbench.common import heartbeat
from specbench.common.plugins import StepTimeout

_PACE_S = 1.0  # between looks; where little time is allowed, a quarter of that


@contextmanager
def step_timeout(seconds: float) -> Iterator[None]:
    """Raise :class:`~specbench.common.plugins.StepTimeout` in what takes longer, within the ``with``.

    It comes from a signal: it ends a loop or a sleep, but nothing that hangs in a library; only the supervisor can. In
    threads, and where SIGUSR1 has a handler, nothing is broken off.

    Args:
        seconds: of a call or a forward; what is not timed (loading a draft model) has ten times that. 0 is for ever.
    """
    before = heartbeat.SHARED[heartbeat.LIMIT_MS]
    heartbeat.SHARED[heartbeat.LIMIT_MS] = int(1000 * seconds)
    main = threading.main_thread()
    here = threading.current_thread() is main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    done = threading.Event()
    try:
        if here and seconds:
            signal.signal(signal.SIGUSR1, _break_off)
            threading.Thread(target=_watch, args=(done, main.ident, seconds), name="overdue", daemon=True).start()
        yield
    finally:
        done.set()
        heartbeat.SHARED[heartbeat.LIMIT_MS] = before
        if here and seconds:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that is on its way must end nothing
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _watch(done: threading.Event, main: int, seconds: float) -> None:
    pace = min(_PACE_S, seconds / 4)
    last, spent = None, 0.0
    while not done.wait(pace):
        found = heartbeat.read()
        # Counted in looks: a process that was stopped, or a machine that slept, has not taken that time.
        spent = spent + pace if (found.at, found.beats) == last else 0.0
        last = found.at, found.beats
        if found.allowed_s and spent >= found.allowed_s and not done.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)  # again and again: it may catch all that comes


def _break_off(number: int, frame: FrameType | None) -> None:
    found = heartbeat.read()
    if found.allowed_s:  # else it has come back meanwhile
        raise StepTimeout(found.allowed_s)
