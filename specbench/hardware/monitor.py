"""What else the machine did between two samples of the kernel's counters.

Other processes took the busy time of the cores in reach, less that of this process and its descendants; with only a
quota these are all cores of the host. Time that a hypervisor took (steal) is separate. None: the kernel has no figure.
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
from specbench.results import Look

_CPUS = Path("/sys/devices/system/cpu")
_SHORTEST_S = 0.3  # the kernel counts in hundredths


@dataclass(frozen=True)
class MachineSample:
    """The kernel's counters at one time; None is what it does not have.

    Attributes:
        at_s: on a clock that only goes forward.
        usable: cores' worth of time that this process gets on them.
        own_s: time that this process and its descendants have taken so far.
        busy_s, stolen_s: that these cores were busy so far, and that a hypervisor took from them.
        clock_mhz: of the fastest of them.
        slowed: times that heat has slowed one of them down.
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
    """The counters now."""
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


def sample_delta(before: MachineSample, now: MachineSample, segment: int) -> Look | None:
    """What happened between two samples; None where they are too near each other to tell."""
    seconds = now.at_s - before.at_s
    if seconds < _SHORTEST_S:
        return None
    own_s = max(0.0, now.own_s - before.own_s)
    busy, stolen = _passed(before.busy_s, now.busy_s), _passed(before.stolen_s, now.stolen_s)
    return Look(
        segment=segment,
        seconds=seconds,
        cores=now.cores,
        usable=now.usable,
        own_cores=own_s / seconds,
        # Both are counted in ticks, and not in the same ones: a little less than nothing is nothing.
        others_cores=None if busy is None else max(0.0, busy - own_s) / seconds,
        stolen_cores=None if stolen is None else stolen / seconds,
        clock_mhz=now.clock_mhz,
        slowed=None if before.slowed is None or now.slowed is None else max(0, now.slowed - before.slowed),
        load=now.load,
    )


def _passed(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _of_cores(cores: Iterable[int]) -> tuple[float | None, float | None]:
    """(busy, stolen) seconds of some cores since the machine was started."""
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
    """Clock of the fastest of some cores: the others may be resting."""
    try:
        found = psutil.cpu_freq(percpu=True)
        fastest = max(found[core].current for core in cores)
    except (OSError, NotImplementedError, ValueError, IndexError):
        return None
    return fastest or None


def _slowed(cores: Iterable[int]) -> int | None:
    """Times that heat has slowed down some cores, or the chip that they are on."""
    found: dict[str, list[int]] = {"core": [], "package": []}
    for core in cores:
        for kind, counts in found.items():
            with suppress(OSError, ValueError):
                file = _CPUS / f"cpu{core}" / "thermal_throttle" / f"{kind}_throttle_count"
                counts.append(int(file.read_text()))
    if not any(found.values()):
        return None
    return sum(found["core"]) + max(found["package"], default=0)  # every core of a chip has the chip's count
