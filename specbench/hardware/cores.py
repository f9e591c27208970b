"""Cores: how many this process may run on, and how many of them other processes take. No torch."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Busy time of a core in its line there: user, nice, system, irq, softirq, steal. The others: idle, waiting for disks.
_BUSY = (1, 2, 3, 6, 7, 8)
_SHORTEST = 0.3  # seconds; the kernel counts in hundredths


def cores_in_reach() -> int:
    """Cores that this process may run on, by the kernel's mask."""
    return len(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Cores' worth of time that it gets on them: less in many containers, by a quota of its group."""
    return max(1, min([cores_in_reach(), *(int(quota + 0.5) for quota in _quotas())]))


def _quotas() -> list[float]:
    """Cores' worth of time that this process's groups get, of those that say so, from its own up to the root."""
    found = []
    for line in _lines(_GROUP):
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        names = ("cpu.max",) if number == "0" else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        root = _GROUPS if number == "0" else _GROUPS / kinds
        if number != "0" and "cpu" not in kinds.split(","):
            continue
        group = root / path.strip("/")
        for place in (group, *group.parents):
            numbers = " ".join(part for name in names for part in _lines(place / name)).split()
            if len(numbers) == 2 and all(part.isdecimal() for part in numbers) and int(numbers[1]):
                found.append(int(numbers[0]) / int(numbers[1]))
            if place == root:
                break
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


class Others:
    """What other processes take of those cores, from when this is made on."""

    def __init__(self) -> None:
        self._began = _now()

    def cores(self) -> float | None:
        """Cores that they took on average; None where the kernel does not tell, or too little time has passed."""
        busy, mine, at = (now - before for now, before in zip(_now(), self._began, strict=True))
        if at < _SHORTEST or not _STAT.exists():
            return None
        return max(0.0, (busy - mine) / at)


def _now() -> tuple[float, float, float]:
    """(busy time of the usable cores, this process's, the time), in seconds."""
    return _busy(), time.process_time(), time.monotonic()


def _busy() -> float:
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in _STAT.read_text().splitlines()]
    except OSError:
        return 0.0
    ticks = sum(int(line[at]) for line in lines if line and line[0] in names for at in _BUSY if at < len(line))
    return ticks / os.sysconf("SC_CLK_TCK")
