"""An engine's process: it and what it starts end with us, however we end and whatever they do against it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import psutil
import pytest
from support.wording import wording

from specbench.common import child as processes
from specbench.common.child import Child, busy_s, pause, resident_bytes, resume
from specbench.common.errors import EngineFault

ROOT = Path(__file__).parents[2]
SLEEPS = "import time; print('up', flush=True); time.sleep(100)"


def python(code: str, *, pipes: bool = False) -> Child:
    return Child([sys.executable, "-S", "-c", code], pipes=pipes)


def until(done: Callable[[], object], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def up(child: Child, lines: int = 1) -> list[str]:
    """Wait until the child has printed ``lines`` lines, and return them."""
    until(lambda: child.last_words(lines).count("·") == lines - 1 and child.last_words())
    return child.last_words(lines).split(" · ")


def test_it_ends_when_it_is_closed_and_a_second_time_changes_nothing() -> None:
    child = python(SLEEPS)
    up(child)
    assert child.running
    child.close()
    child.close()
    assert gone(child.pid)
    assert not child.running
    assert child.process.returncode == -signal.SIGTERM
    assert child.last_words() == ""


@pytest.mark.parametrize("command", ["/nowhere/engine", "bad\0name"])
def test_what_cannot_be_started_is_a_fault(command: str) -> None:
    with pytest.raises(EngineFault, check=wording):
        Child([command])


def test_an_engine_that_ends_is_reported_with_its_last_words() -> None:
    child = python("print('first'); print('\\x1b[31mno\\x07 such\\r file\\x1b[0m\\n\\n'); raise SystemExit(5)")
    assert wording(str(child.died()))
    child.close()
    child = python("import os; os.kill(os.getpid(), 9)")
    assert wording(str(child.died()))
    child.close()
    child = python("import os; os.kill(os.getpid(), 40)")
    assert "was ended by signal 40" in str(child.died()) or "SIGRT" in str(child.died())
    child.close()


def test_one_that_does_not_hear_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.3)
    child = python(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}")
    up(child)
    child.close()
    assert child.process.returncode == -signal.SIGKILL


def test_a_stopped_one_ends_too() -> None:
    child = python(SLEEPS)
    up(child)
    pause([child.pid])
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    resume([child.pid])
    until(lambda: psutil.Process(child.pid).status() != psutil.STATUS_STOPPED)
    pause([child.pid])
    child.close()
    assert gone(child.pid)


FAMILY = f"""
import os, subprocess, sys, time
print(subprocess.Popen([sys.executable, '-S', '-c', {SLEEPS!r}], start_new_session=True).pid, flush=True)
print(subprocess.Popen([sys.executable, '-S', '-c', {SLEEPS!r}], stdout=subprocess.DEVNULL).pid, flush=True)
"""


@pytest.mark.parametrize("parent_ends", [False, True])
def test_children_of_its_end_with_it_in_whatever_session_and_even_where_it_has_ended_before(parent_ends: bool) -> None:
    child = python(FAMILY + ("" if parent_ends else "time.sleep(100)"))
    until(lambda: len([each for each in child.last_words(9).split(" · ") if each.isdigit()]) == 2)
    pids = [int(each) for each in child.last_words(9).split(" · ") if each.isdigit()]
    if parent_ends:
        assert child.process.wait(5) == 0
    assert not any(map(gone, pids))
    child.close()
    assert all(map(gone, pids))


HOLDER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from contextlib import closing
from specbench.common.child import Child
with closing(Child([sys.executable, '-S', '-c', {SLEEPS!r}])) as child:
    print(child.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_us_even_where_we_are_killed(sent: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as ours:
        assert ours.stdout
        pid = int(ours.stdout.readline())
        assert not gone(pid)
        os.kill(ours.pid, sent)
        assert ours.wait(5) != 0
    until(lambda: gone(pid))


def test_one_that_a_thread_starts_outlives_that_thread() -> None:
    made: list[Child] = []
    thread = Thread(target=lambda: made.append(python(SLEEPS)))
    thread.start()
    thread.join()
    up(made[0])
    time.sleep(0.05)
    assert made[0].running
    made[0].close()


def test_its_time_and_memory_are_counted_with_those_of_its_children() -> None:
    spin = "import time\nend = time.process_time() + .1\nwhile time.process_time() < end: pass\nprint('up', flush=True)"
    child = python(f"import subprocess, sys, time; subprocess.run([sys.executable, '-S', '-c', {spin!r}]); {SLEEPS}")
    up(child, 2)
    assert 0.09 <= busy_s([child.pid]) < 2
    assert resident_bytes([child.pid]) > 1 << 20
    child.close()
    assert busy_s([child.pid]) == resident_bytes([child.pid]) == 0
