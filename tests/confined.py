"""Confined: what tests of the sandbox share: two confinements, and the processes there are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specbench.evals.sandbox.sandbox import Confinement, Limits

TIGHT = Limits(cpu_s=1, wall_s=1.5, memory=512 << 20)
BARE = Confinement(seccomp=True, landlock=0, namespaces=False)  # what a strict container leaves


def processes() -> dict[int, tuple[int, bool]]:
    """Every process: its parent, and whether a seccomp filter holds it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # gone meanwhile
            fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
            found[int(path.parent.name)] = (int(fields["PPid"]), fields.get("Seccomp") == "2")
    return found


def children() -> set[int]:
    return {pid for pid, (parent, _) in processes().items() if parent == os.getpid()}
