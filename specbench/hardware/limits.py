"""Cores and memory that this process may use, by the kernel and by the limits of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUP, _GROUPS, _INFO = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
#: Of groups of version 2 and 1: the limit, what is taken, and the parts of it that are given up on demand.
_MEMORY = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
_QUOTA = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def cores_in_reach() -> int:
    """Cores that this process may run on, by the kernel's mask."""
    return len(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Cores' worth of time that it gets on them: less in many containers, by a quota of its group."""
    found = [cores_in_reach()]
    for group, version in _groups("cpu"):
        numbers = " ".join(part for name in _QUOTA[version] for part in _lines(group / name)).split()
        if len(numbers) == 2 and all(part.isdecimal() for part in numbers) and int(numbers[1]):
            found.append(int(int(numbers[0]) / int(numbers[1]) + 0.5))
    return max(1, min(found))


def ram_bytes() -> int:
    """Memory that this process may take, if nobody else takes any."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(limit for limit, _ in _limits())])


def free_ram_bytes() -> int | None:
    """Memory that can be had without swapping; None where the kernel does not tell."""
    lines = _lines(_INFO)
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else min([available, *(max(0, left) for _, left in _limits())])


def _groups(kind: str) -> Iterator[tuple[Path, int]]:
    """Groups of this process that limit ``kind``, from its own up to the root; 0 for version 2, 1 for version 1."""
    for line in _lines(_GROUP):
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and kind not in kinds.split(","):
            continue
        root = _GROUPS if number == "0" else _GROUPS / kinds
        group = root / path.strip("/")
        for place in (group, *group.parents):
            yield place, int(number != "0")
            if place == root:
                break


def _limits() -> Iterator[tuple[int, int]]:
    """Bytes that each group may have, and has left."""
    for group, version in _groups("memory"):
        most, used, kept = _MEMORY[version]
        limit, taken = _number(group / most), _number(group / used)
        if limit is not None and taken is not None:
            fields = (line.split() for line in _lines(group / "memory.stat"))  # copies of files make room
            yield limit, limit - taken + sum(int(field[1]) for field in fields if len(field) == 2 and field[0] in kept)


def _number(file: Path) -> int | None:
    """The number in a file; None for "max", and for a file that is not there."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
