"""What else a machine does between two looks, by made-up counters of a kernel and by those of this one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.asserting import known

from specbench.hardware import watching
from specbench.hardware.watching import Seen, between, see
from specbench.results.watch import Look

BEFORE = """cpu  900 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 70 1 2 3 9 9
cpu1 200 20 30 6000 80 4 5 6 9 9
cpu2 700 70 70 7000 70 7 7 7 7 7
"""
AFTER = """cpu  900 0 0 0 0 0 0 0 0 0
cpu0 180 15 25 5010 70 2 3 28 9 9
cpu1 210 20 30 6090 90 4 5 6 9 9
cpu2 900 90 90 7000 70 9 9 9 7 7
"""


class Kernel:
    """Files of a kernel: three cores, of which two are in reach, and a process with a child and a grandchild."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cpus = root / "proc", root / "cpus"
        self.write("proc/stat", BEFORE)
        self.write(f"proc/{os.getpid()}/task/1/children", "77 ")
        self.write("proc/77/task/77/children", "88")
        self.taken(77, 10, 5)
        self.taken(88, 0, 0)

    def write(self, name: str, text: str) -> None:
        file = self.proc.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def taken(self, pid: int, own: int, ended: int) -> None:
        """Hundredths that a process took, and its ended children; its name has a blank and a bracket."""
        self.write(f"proc/{pid}/stat", f"{pid} (a) b) S 1 2 3 4 5 6 7 8 9 10 {own} 1 {ended} 2 20 0 1\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(watching, "_PROC", made.proc)
    monkeypatch.setattr(watching, "_CPUS", made.cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(watching, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(os, "times", lambda: os.times_result((1.0, 0.5, 0.25, 0.25, 0.0)))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    return made


def look(kernel: Kernel, seconds: float = 2.0) -> Look:
    """What happened since a look two seconds ago, taken when the kernel's files were as they were first."""
    before = see()
    kernel.write("proc/stat", AFTER)
    kernel.taken(77, 30, 5)
    kernel.taken(88, 7, 0)
    now = see()
    return known(between(before, Seen(**{**vars(now), "at_s": before.at_s + seconds}), 3))


def test_others_are_what_is_busy_without_this_process_its_children_and_theirs(kernel: Kernel) -> None:
    found = look(kernel)
    assert (found.segment, found.seconds, found.cores, found.usable, found.load) == (3, 2.0, 2, 1, 1.5)
    assert found.own_cores == pytest.approx((0.20 + 0.07) / 2)
    # 0.92 s on core 0 (user, nice, system, interrupts) and 0.10 s on core 1; 0.25 s of core 0 were stolen.
    assert found.others_cores == pytest.approx((0.92 + 0.10 - 0.27) / 2)
    assert found.stolen_cores == pytest.approx(0.25 / 2)


def test_what_has_ended_was_this_processes_own(kernel: Kernel) -> None:
    assert see().own_s == pytest.approx(1.0 + 0.5 + 0.25 + 0.25 + (10 + 1 + 5 + 2 + 0 + 1 + 0 + 2) / 100)
    (kernel.proc / "88" / "stat").unlink()  # it ends between being found and being looked at
    assert see().own_s == pytest.approx(2.0 + 0.18)


def test_the_clock_is_that_of_the_fastest_core_in_reach(kernel: Kernel) -> None:
    assert look(kernel).clock_mhz is None
    kernel.write("proc/cpuinfo", "cpu MHz\t\t: 2300.500\nbogomips: 4600\n\ncpu MHz : 2200.1\ncpu MHz : unknown\n")
    assert see().clock_mhz == 2300.5
    for core, khz in enumerate((1_800_000, 3_100_000, 4_000_000)):
        kernel.write(f"cpus/cpu{core}/cpufreq/scaling_cur_freq", f"{khz}\n")
    assert see().clock_mhz == 3100.0, "the third is not in reach"


def test_heat_is_counted_by_core_and_once_by_chip(kernel: Kernel) -> None:
    assert look(kernel).slowed is None
    for core in (0, 1, 2):
        kernel.write(f"cpus/cpu{core}/thermal_throttle/core_throttle_count", f"{10 * core + 1}\n")
        kernel.write(f"cpus/cpu{core}/thermal_throttle/package_throttle_count", "5\n")
    before = see()
    assert before.slowed == 1 + 11 + 5
    kernel.write("cpus/cpu1/thermal_throttle/core_throttle_count", "14\n")
    now = Seen(**{**vars(see()), "at_s": before.at_s + 1})
    assert known(between(before, now, 0)).slowed == 3


@pytest.mark.parametrize("stat", [None, "", "nonsense\n", "cpu 1 2 3\n"])
def test_a_kernel_that_does_not_tell_is_no_error(kernel: Kernel, stat: str | None, monkeypatch: object) -> None:
    (kernel.proc / "stat").unlink()
    if stat is not None:
        kernel.write("proc/stat", stat)
    before = see()
    found = known(between(before, Seen(**{**vars(see()), "at_s": before.at_s + 1}), 0))
    assert (found.others_cores, found.stolen_cores, found.clock_mhz, found.slowed) == (None, None, None, None)
    assert found.own_cores == 0.0


def test_an_old_kernels_line_without_stolen_time(kernel: Kernel) -> None:
    kernel.write("proc/stat", "cpu0 100 10 20 5000 70 1 2\ncpu1 100 10 20 5000 70 1 2\n")
    assert (see().busy_s, see().stolen_s) == (pytest.approx(2.66), None)


def test_another_system_has_no_mask_and_no_load(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "getloadavg", none)
    found = see()
    assert (found.cores, found.usable, found.load) == (3, 3, None)


def test_two_looks_at_once_say_nothing() -> None:
    seen = see()
    assert between(seen, seen, 0) is None
    assert between(seen, Seen(**{**vars(seen), "at_s": seen.at_s + 0.2}), 0) is None


def test_counters_that_fell_are_nothing_taken(kernel: Kernel) -> None:
    now, before = see(), Seen(1.0, 2, 2, 99.0, 99.0, 99.0, None, 99, None)
    found = known(between(before, Seen(**{**vars(now), "at_s": 2.0, "slowed": 0}), 0))
    assert (found.own_cores, found.others_cores, found.stolen_cores, found.slowed) == (0.0, 0.0, 0.0, 0)


_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h; an earlier test of this process may have had it set


@contextmanager
def busy(*, ours: bool) -> Iterator[None]:
    """A process that keeps the first core in reach busy: a child of this one, or nobody's."""
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
        yield
    finally:
        os.kill(pid, 9)
        if ours:
            child.wait()


def watched(seconds: float) -> Look:
    before = see()
    time.sleep(seconds)
    return known(between(before, see(), 0))


@pytest.mark.parametrize("ours", [False, True])
def test_a_busy_process_is_seen_and_a_child_is_no_other(ours: bool) -> None:
    # Another one may be busy on the same core, and then it gets half of it; what is seen of both is a core at least.
    with busy(ours=ours):
        found = watched(0.8)
    mine, others = (found.own_cores, known(found.others_cores)) if ours else (known(found.others_cores), 0.0)
    assert mine > 0.35
    assert mine + others <= found.cores + 0.2
    if not ours:
        assert found.own_cores < 0.2
