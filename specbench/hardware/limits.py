"""Cores and memory that this process may use, according to the kernel and to its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUP, _GROUPS, _INFO = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
#: Files of cgroup version 2, then of version 1: the limit, the usage, and the parts of it that are freed on demand.
_MEMORY = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
_QUOTA = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def cores_in_reach() -> int:
    """Number of cores that this process may run on, from the kernel's affinity mask."""
    return len(os.sched_getaffinity(0))


def usable_cores() -> int:
    """CPU time that this process may use, in cores: often less in containers, because of a cgroup quota."""
    found = [cores_in_reach()]
    for group, version in _groups("cpu"):
        numbers = " ".join(part for name in _QUOTA[version] for part in _lines(group / name)).split()
        if len(numbers) == 2 and all(part.isdecimal() for part in numbers) and int(numbers[1]):
            found.append(int(int(numbers[0]) / int(numbers[1]) + 0.5))
    return max(1, min(found))


def ram_bytes() -> int:
    """Memory that this process could use if no other process used any."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(limit for limit, _ in _limits())])


def free_ram_bytes() -> int | None:
    """Memory that is available without swapping; None if the kernel does not report it."""
    lines = _lines(_INFO)
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else min([available, *(max(0, left) for _, left in _limits())])


def _groups(kind: str) -> Iterator[tuple[Path, int]]:
    """Yield (group, 0 for cgroup version 2 or 1 for version 1) of groups that limit ``kind``, up to the root."""
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
    """Yield (limit, bytes left) of each group with a memory limit."""
    for group, version in _groups("memory"):
        most, used, kept = _MEMORY[version]
        limit, taken = _number(group / most), _number(group / used)
        if limit is not None and taken is not None:
            fields = (line.split() for line in _lines(group / "memory.stat"))  # cached files can be dropped
            yield limit, limit - taken + sum(int(field[1]) for field in fields if len(field) == 2 and field[0] in kept)


def _number(file: Path) -> int | None:
    """Return the number in a file; None for "max" or a missing file."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
