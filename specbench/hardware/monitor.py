"""Measure what else the machine did between two samples of the kernel's counters.

The CPU time of other processes is the busy time of the cores that this process may run on, minus the time of this
process and its descendants. If the process is limited only by a quota, these are all cores of the host. Time taken by a
hypervisor (steal) is separate. None means that the kernel does not report a value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from specbench.common import busy_s
from specbench.hardware.limits import usable_cores
from specbench.results import MachineInterval

_CPUS = Path("/sys/devices/system/cpu")
_SHORTEST_S = 0.3  # the kernel counts in hundredths of a second


@dataclass(frozen=True)
class MachineSample:
    """The kernel's counters at one time; None for a value that it does not report.

    Attributes:
        at_s: time of a monotonic clock.
        cores: cores that this process may run on.
        usable: CPU time that this process may use on them, in cores.
        own_s: CPU time of this process and its descendants so far.
        busy_s, stolen_s: time so far that these cores were busy, and that a hypervisor took from them.
        clock_mhz: clock of the fastest of these cores.
        slowed: number of thermal slowdowns of these cores so far.
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


def sample_machine() -> MachineSample:
    """Read the counters."""
    masked = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if masked else list(range(os.cpu_count() or 1))
    busy, stolen = _of_cores(cores)
    load = None
    with suppress(OSError):
        load = os.getloadavg()[0]
    return MachineSample(
        at_s=time.monotonic(),
        cores=len(cores),
        usable=usable_cores() if masked else len(cores),
        own_s=busy_s([os.getpid()]),
        busy_s=busy,
        stolen_s=stolen,
        clock_mhz=_clock_mhz(cores),
        slowed=_slowed(cores),
        load=load,
    )


def sample_delta(before: MachineSample, now: MachineSample, segment: int) -> MachineInterval | None:
    """Return what happened between two samples, or None if they are too close to each other."""
    seconds = now.at_s - before.at_s
    if seconds < _SHORTEST_S:
        return None
    own_s = max(0.0, now.own_s - before.own_s)
    busy, stolen = _passed(before.busy_s, now.busy_s), _passed(before.stolen_s, now.stolen_s)
    return MachineInterval(
        segment=segment,
        seconds=seconds,
        cores=now.cores,
        usable=now.usable,
        own_cores=own_s / seconds,
        # Both are counted in different ticks, so the difference can be slightly negative.
        others_cores=None if busy is None else max(0.0, busy - own_s) / seconds,
        stolen_cores=None if stolen is None else stolen / seconds,
        clock_mhz=now.clock_mhz,
        slowed=None if before.slowed is None or now.slowed is None else max(0, now.slowed - before.slowed),
        load=now.load,
    )


def _passed(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _of_cores(cores: Iterable[int]) -> tuple[float | None, float | None]:
    """Return (busy, stolen) seconds of some cores since the machine was started."""
    try:
        found = psutil.cpu_times(percpu=True)
        mine = [found[core] for core in cores]
    except (OSError, ValueError, IndexError):
        return None, None
    busy = sum(
        each.user + each.nice + each.system + getattr(each, "irq", 0) + getattr(each, "softirq", 0) for each in mine
    )
    stolen = [each.steal for each in mine if hasattr(each, "steal")]
    return busy, sum(stolen) if stolen else None


def _clock_mhz(cores: Iterable[int]) -> float | None:
    """Clock of the fastest of some cores, since other cores may be idle."""
    try:
        found = psutil.cpu_freq(percpu=True)
        fastest = max(found[core].current for core in cores)
    except (OSError, NotImplementedError, ValueError, IndexError):
        return None
    return fastest or None


def _slowed(cores: Iterable[int]) -> int | None:
    """Number of thermal slowdowns of some cores, or of the chip that they are on."""
    found: dict[str, list[int]] = {"core": [], "package": []}
    for core in cores:
        for kind, counts in found.items():
            with suppress(OSError, ValueError):
                file = _CPUS / f"cpu{core}" / "thermal_throttle" / f"{kind}_throttle_count"
                counts.append(int(file.read_text()))
    if not any(found.values()):
        return None
    return sum(found["core"]) + max(found["package"], default=0)  # every core of a chip reports the chip's count
