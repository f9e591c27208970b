"""Quiet neighbours: who takes processor time while another is timed is found, stopped, and woken for its own turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
import pytest

from specbench.backends import idle_guard
from specbench.backends.idle_guard import LOUD, IdleGuard
from specbench.common.child import Child

SPINS = "print('up', flush=True)\nwhile True: pass"
SLEEPS = "import time; print('up', flush=True); time.sleep(100)"


class Engine:
    """As much of a backend as a neighbour is."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def processes(self) -> Sequence[int]:
        return self.pids


@contextmanager
def engines(**codes: str) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        found = {}
        for row, code in codes.items():
            child = Child([sys.executable, "-S", "-c", code])
            stack.callback(child.close)
            found[row] = Engine(child.pid)
            while child.running and not child.last_words():  # its start is work, too
                time.sleep(0.005)
        yield found


def stopped(engine: Engine) -> bool:
    """Whether it is; it is asked for a while, as a signal takes some."""
    end = time.monotonic() + 0.3
    while not (found := psutil.Process(engine.pids[0]).status() == psutil.STATUS_STOPPED) and time.monotonic() < end:
        time.sleep(0.005)
    return bool(found)


def stretch(watched: IdleGuard, row: str | None, seconds: float, **more: bool) -> None:
    watched.before(row)
    time.sleep(seconds)
    watched.after(row, **more)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_guard, "WINDOW_S", 0.4)
    monkeypatch.setattr(idle_guard, "REST_S", 0.05)


def test_one_that_spins_is_stopped_from_then_on_and_woken_for_its_turn() -> None:
    with engines(loud=SPINS, quiet=SLEEPS) as found, IdleGuard(found) as watched:
        stretch(watched, None, 0.25)
        assert not watched.stopped, "too short to tell"
        assert watched.idle_share("loud") is None
        stretch(watched, "quiet", 0.25)
        assert watched.stopped == {"loud"}
        disturbed = watched.idle_share("loud")
        assert disturbed is not None
        assert disturbed > LOUD
        watched.before(None)
        assert stopped(found["loud"])
        assert not stopped(found["quiet"])
        watched.after(None)
        watched.before("loud")
        assert not stopped(found["loud"])
        watched.after("loud")
        stretch(watched, None, 0.5)
        assert watched.idle_share("loud") == disturbed, "stopped it takes nothing; what was before stays true"
        assert stopped(found["loud"])


def test_its_own_turn_does_not_count() -> None:
    with engines(busy=SPINS) as found, IdleGuard(found) as watched:
        stretch(watched, "busy", 0.5)
        stretch(watched, "busy", 0.5)
        assert watched.idle_share("busy") is None
        assert not watched.stopped


def test_what_warm_up_shows_is_heeded_and_not_recorded() -> None:
    with engines(loud=SPINS, quiet=SLEEPS) as found, IdleGuard(found) as watched:
        stretch(watched, None, 0.5, timed=False)
        assert watched.stopped == {"loud"}
        assert watched.idle_share("loud") is None
        stretch(watched, None, 0.5)
        assert watched.idle_share("loud") == pytest.approx(0, abs=0.05)  # a tick of user's and one of system's time
        assert watched.idle_share("quiet") == pytest.approx(0, abs=0.05)


def test_all_are_awake_at_the_end_however_that_comes() -> None:
    with engines(loud=SPINS) as found:
        with suppress(KeyboardInterrupt), IdleGuard(found) as watched:
            stretch(watched, None, 0.5)
            watched.before(None)
            assert stopped(found["loud"])
            raise KeyboardInterrupt
        assert not stopped(found["loud"])


def test_our_own_process_is_looked_at_while_another_is_timed() -> None:
    with engines(other=SLEEPS) as found, IdleGuard(found) as watched:
        watched.before("other")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        watched.after("other")
        share = watched.idle_share(None)
        assert share is not None
        assert share > LOUD
        assert not watched.stopped
