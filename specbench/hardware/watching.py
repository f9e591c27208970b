"""Watching: what else a machine did between two looks, by the kernel's own counters. No torch.

``/proc/stat`` has the time that each core was busy, whoever it was busy for. Of the cores in reach that is taken, less
what this process, its threads and its children took: the rest is other processes' and the kernel's own. In a container
with cores of its own these are its own neighbours; in one that has only a quota they are all of the host's, and count
where they leave it less than its quota. What a hypervisor took (steal) is told apart. Where a kernel has no such files
a figure is None, and nothing is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.hardware.cores import usable_cores
from specbench.results.watch import Look

_PROC, _CPUS = Path("/proc"), Path("/sys/devices/system/cpu")
# Of a core's line in /proc/stat: user, nice, system, irq, softirq. The others: idle, waiting for disks; steal; guests,
# who are in user already.
_BUSY, _STOLEN = (1, 2, 3, 6, 7), 8
_SHORTEST_S = 0.3  # the kernel counts in hundredths


@dataclass(frozen=True)
class Seen:
    """The kernel's counters at one time; None is what it does not have.

    Attributes:
        at_s: on a clock that only goes forward.
        cores: in reach.
        usable: cores' worth of time that this process gets on them.
        own_s: time that this process and its children have taken so far.
        busy_s, stolen_s: that these cores were busy so far, and that a hypervisor took from them.
        clock_mhz: of the fastest of them.
        slowed: times that heat has slowed one of them down.
        load: load average of a minute.
    """

    at_s: float
    cores: int
    usable: int
    own_s: float
    busy_s: float | None
    stolen_s: float | None
    clock_mhz: float | None
    slowed: int | None
    load: float | None


def see() -> Seen:
    """The counters now."""
    cores = _in_reach()
    busy_s, stolen_s = _of_cores(cores)
    return Seen(
        at_s=time.monotonic(),
        cores=len(cores),
        usable=_usable(cores),
        own_s=_own_s(),
        busy_s=busy_s,
        stolen_s=stolen_s,
        clock_mhz=_clock_mhz(cores),
        slowed=_slowed(cores),
        load=_load(),
    )


def between(before: Seen, now: Seen, segment: int) -> Look | None:
    """What happened between two looks; None where they are too near each other to tell.

    Args:
        before, now: the looks.
        segment: number of the stretch that comes next.
    """
    seconds = now.at_s - before.at_s
    if seconds < _SHORTEST_S:
        return None
    own_s = max(0.0, now.own_s - before.own_s)
    busy_s = _passed(before.busy_s, now.busy_s)
    stolen_s = _passed(before.stolen_s, now.stolen_s)
    return Look(
        segment=segment,
        seconds=seconds,
        cores=now.cores,
        usable=now.usable,
        own_cores=own_s / seconds,
        # Both are counted in ticks, and not in the same ones: a little less than nothing is nothing.
        others_cores=None if busy_s is None else max(0.0, busy_s - own_s) / seconds,
        stolen_cores=None if stolen_s is None else stolen_s / seconds,
        clock_mhz=now.clock_mhz,
        slowed=None if before.slowed is None or now.slowed is None else max(0, now.slowed - before.slowed),
        load=now.load,
    )


def _passed(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _in_reach() -> list[int]:
    """Numbers of the cores that this process may run on; of a system without such a mask, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _usable(cores: Sequence[int]) -> int:
    """Cores' worth of time on these: a container may have a quota."""
    return usable_cores() if hasattr(os, "sched_getaffinity") else len(cores)


def _of_cores(cores: Iterable[int]) -> tuple[float | None, float | None]:
    """(busy, stolen) seconds of some cores since the machine was started."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in _text(_PROC / "stat").splitlines()]
    mine = [[int(field) for field in line[1:]] for line in lines if line and line[0] in names]
    if not mine:
        return None, None
    tick = os.sysconf("SC_CLK_TCK")
    busy = sum(line[at - 1] for line in mine for at in _BUSY if at <= len(line))
    stolen = [line[_STOLEN - 1] for line in mine if len(line) >= _STOLEN]
    return busy / tick, sum(stolen) / tick if stolen else None


def _own_s() -> float:
    """Seconds that this process, its threads and its children took, those that have ended too."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    # A living child's seconds are its own until somebody has waited for it.
    return own + sum(_taken_s(pid) for pid in _descendants(os.getpid()))


def _descendants(pid: int) -> list[int]:
    """Living children of a process, and theirs; none where the kernel does not tell."""
    found = []
    for task in _names(_PROC / str(pid) / "task"):
        for child in _text(_PROC / str(pid) / "task" / task / "children").split():
            found += [int(child), *_descendants(int(child))]
    return found


def _taken_s(pid: int) -> float:
    """Seconds that a process and its ended children took; 0 of one that has ended meanwhile."""
    fields = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()  # behind the name, which may have blanks
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if len(fields) >= 15 else 0.0


def _clock_mhz(cores: Iterable[int]) -> float | None:
    """Clock of the fastest of some cores: the others may be resting."""
    files = [_CPUS / f"cpu{core}" / "cpufreq" / "scaling_cur_freq" for core in cores]
    found = [int(text) / 1e3 for file in files if (text := _text(file).strip()).isdecimal()]
    if not found:
        pairs = (line.partition(":") for line in _text(_PROC / "cpuinfo").splitlines())
        found = [float(value) for key, _, value in pairs if key.strip() == "cpu MHz" and _is_a_number(value)]
    return max(found) if found and max(found) > 0 else None


def _is_a_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def _slowed(cores: Iterable[int]) -> int | None:
    """Times that heat has slowed down some cores, or the chip that they are on."""
    found: dict[str, list[int]] = {"core": [], "package": []}
    for core in cores:
        for kind, counts in found.items():
            text = _text(_CPUS / f"cpu{core}" / "thermal_throttle" / f"{kind}_throttle_count").strip()
            counts += [int(text)] if text.isdecimal() else []
    if not any(found.values()):
        return None
    return sum(found["core"]) + max(found["package"], default=0)  # every core of a chip has the chip's count


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
