"""RAM: how much this process can have, by the kernel and by the limits of its control groups. No torch.

A container's limit is in no figure of the kernel's for the whole machine, and who goes past it is ended without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUP, _GROUPS, _INFO = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
#: Of groups of either version: the limit, what is taken, and those parts of it that are given up on demand.
_UNIFIED = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def ram_bytes() -> int:
    """Memory that this process may take, if nobody else takes any."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(limit for limit, _ in _limits())])


def free_ram_bytes() -> int | None:
    """Memory that can be had without swapping; None where the kernel does not tell."""
    lines = _lines(_INFO)
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else min([available, *(max(0, left) for _, left in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Bytes that each group of this process may have, and has left, from its own up to the root."""
    for line in _lines(_GROUP):
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and "memory" not in kinds.split(","):
            continue
        root, names = (_GROUPS, _UNIFIED) if number == "0" else (_GROUPS / kinds, _LEGACY)
        group = root / path.strip("/")
        for place in (group, *group.parents):
            limit, taken = (_number(place / name) for name in names[:2])
            if limit is not None and taken is not None:
                yield limit, limit - taken + _kept(place / "memory.stat", names[2])
            if place == root:
                break


def _kept(file: Path, names: tuple[str, ...]) -> int:
    """Copies of files, which make room for what is asked for."""
    fields = (line.split() for line in _lines(file))
    return sum(int(value) for name, value in (field for field in fields if len(field) == 2) if name in names)


def _number(file: Path) -> int | None:
    """The number in a file; None of "max", and of a file that is not there."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
