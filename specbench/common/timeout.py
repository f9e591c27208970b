"""Interrupt a plug-in's call that takes too long, as far as Python can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specbench.common import heartbeat
from specbench.common.plugins import StepTimeout

_PACE_S = 1.0  # between checks; a quarter of the limit if that is short


@contextmanager
def step_timeout(seconds: float) -> Iterator[None]:
    """Raise :class:`~specbench.common.plugins.StepTimeout` in code inside the ``with`` block that takes too long.

    It comes from a signal, so it ends a loop or a sleep, but not a hang in a library; only the supervisor can end that.
    In threads, and if SIGUSR1 has a handler, nothing is interrupted.

    Args:
        seconds: limit of a call or a forward; untimed code (loading a draft model) has ten times that. 0 is unlimited.
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
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a pending signal must not end anything
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _watch(done: threading.Event, main: int, seconds: float) -> None:
    pace = min(_PACE_S, seconds / 4)
    last, spent = None, 0.0
    while not done.wait(pace):
        found = heartbeat.read()
        # Counted in checks: a process that was stopped, or a machine that slept, did not use that time.
        spent = spent + pace if (found.at, found.beats) == last else 0.0
        last = found.at, found.beats
        if found.allowed_s and spent >= found.allowed_s and not done.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)  # repeatedly: the code may catch the exception


def _break_off(number: int, frame: FrameType | None) -> None:
    found = heartbeat.read()
    if found.allowed_s:  # otherwise it has returned meanwhile
        raise StepTimeout(found.allowed_s)
