"""What else a machine does between two samples, by made-up counters of a kernel and by those of this one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.asserting import known

from specbench.hardware import monitor
from specbench.hardware.monitor import MachineSample, sample_delta, sample_machine
from specbench.results.watch import MachineInterval

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest_nice")
BEFORE = [
    Times(1.0, 0.1, 0.2, 50, 0.7, 0.01, 0.02, 0.03, 0.09), Times(2.0, 0.2, 0.3, 60, 0.8, 0.04, 0.05, 0.06, 0.09),
    Times(7.0, 0.7, 0.7, 70, 0.7, 0.07, 0.07, 0.07, 0.07),
]  # fmt: skip
AFTER = [
    Times(1.8, 0.15, 0.25, 50.1, 0.7, 0.02, 0.03, 0.28, 0.09), Times(2.1, 0.2, 0.3, 60.9, 0.9, 0.04, 0.05, 0.06, 0.09),
    Times(9.0, 0.9, 0.9, 70, 0.7, 0.09, 0.09, 0.07, 0.07),
]  # fmt: skip


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three cores, of which two are in reach."""
    made = SimpleNamespace(times=BEFORE, own=2.0, clocks=[], cpus=tmp_path)
    monkeypatch.setattr(monitor, "_CPUS", tmp_path)
    monkeypatch.setattr(monitor.psutil, "cpu_times", lambda percpu: made.times)
    monkeypatch.setattr(
        monitor.psutil, "cpu_freq", lambda percpu: [SimpleNamespace(current=mhz) for mhz in made.clocks]
    )
    monkeypatch.setattr(monitor, "busy_s", lambda pids: made.own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(monitor, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    return made


def later(before: MachineSample, seconds: float = 2.0) -> MachineInterval:
    return known(sample_delta(before, MachineSample(**{**vars(sample_machine()), "at_s": before.at_s + seconds}), 3))


def test_others_are_what_is_busy_and_not_of_this_process(kernel: Any) -> None:
    before = sample_machine()
    kernel.times, kernel.own = AFTER, 2.27
    found = later(before)
    assert (found.segment, found.seconds, found.cores, found.usable, found.load) == (3, 2.0, 2, 1, 1.5)
    assert found.own_cores == pytest.approx(0.27 / 2)
    # 0.92 s on core 0 (user, nice, system, interrupts) and 0.10 s on core 1; 0.25 s of core 0 were stolen.
    assert found.others_cores == pytest.approx((0.92 + 0.10 - 0.27) / 2)
    assert found.stolen_cores == pytest.approx(0.25 / 2)


def test_heat_is_counted_by_core_and_once_by_chip(kernel: Any) -> None:
    assert sample_machine().slowed is None
    for core in (0, 1, 2):
        folder = kernel.cpus / f"cpu{core}/thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{10 * core + 1}\n")
        (folder / "package_throttle_count").write_text("5\n")
    before = sample_machine()
    assert before.slowed == 1 + 11 + 5
    (folder.parent.parent / "cpu1/thermal_throttle/core_throttle_count").write_text("14\n")
    assert later(before).slowed == 3


def test_what_the_kernel_does_not_tell_is_none(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise OSError

    kernel.times = [Times(1, 1, 1, 1, 1, 1, 1, 1, 1)]
    assert (sample_machine().busy_s, sample_machine().stolen_s) == (None, None)
    for owner, name in ((monitor.psutil, "cpu_times"), (monitor.psutil, "cpu_freq"), (os, "getloadavg")):
        monkeypatch.setattr(owner, name, none)
    found = later(sample_machine())
    assert (found.others_cores, found.stolen_cores, found.clock_mhz, found.slowed, found.load) == (None,) * 5


_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h; an earlier test of this process may have had it set


@contextmanager
def busy(*, ours: bool) -> Iterator[int]:
    """Keep this process's first core busy with another process: a child of this one, or an orphan."""
    core = sorted(os.sched_getaffinity(0))[0]
    work = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    if ours:
        child = subprocess.Popen(work)
        pid = child.pid
    else:  # its parent ends at once, so that it is init's, unless this process adopts orphans
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        parent = f"import subprocess\nprint(subprocess.Popen({work!r}, stdout=subprocess.DEVNULL).pid)"
        pid = int(subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, check=True).stdout)
    try:
        time.sleep(0.3)  # an interpreter starts
        yield pid
    finally:
        os.kill(pid, 9)
        if ours:
            child.wait()


@pytest.mark.parametrize("ours", [False, True])
def test_a_busy_process_is_seen_and_a_child_is_no_other(ours: bool) -> None:
    with busy(ours=ours) as pid:
        before, took = sample_machine(), monitor.busy_s([pid])
        time.sleep(0.8)
        took, found = monitor.busy_s([pid]) - took, known(sample_delta(before, sample_machine(), 0))
    seen = found.own_cores if ours else known(found.others_cores)
    assert seen * found.seconds > 0.7 * took - 0.05, "the machine may be busy with more"
    assert ours or found.own_cores < 0.2
