"""Threads of a step on a CPU: those that a plan asks for, else as many as there are free cores.

Threads wait for each other after every product, so one thread more than there are free cores costs far more than it
gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specbench.hardware.cores import Others, cores_in_reach, usable_cores

_threads: tuple[int, int] | None = None  # torch's number before a plan of this process set one, and what it set
_fewer = False  # whether that was for other processes' sake


def set_threads(wanted: int | None) -> None:
    """Gives torch the threads of a plan; one that asks for none gets those from before another plan asked."""
    global _threads, _fewer
    _fewer = False
    if _threads is not None and torch.get_num_threads() != _threads[1]:
        _threads = None  # the process has chosen anew since
    if wanted is not None:
        _threads = (_threads[0] if _threads else torch.get_num_threads(), wanted)
        torch.set_num_threads(wanted)
    elif _threads is not None:
        torch.set_num_threads(_threads[0])
        _threads = None


def leave_cores(others: Others, say: Callable[[str], None]) -> None:
    """Leave cores that others use, where neither a plan nor the environment says how many threads; ``say`` takes a
    line.
    """
    global _fewer
    if "OMP_NUM_THREADS" in os.environ:
        return
    taken, usual = others.cores() or 0.0, torch.get_num_threads()
    reach, mine = cores_in_reach(), usable_cores()
    free = max(1, int(reach - taken + 0.5))
    if min(free, mine) >= usual:
        return
    set_threads(min(free, mine))
    _fewer = free < mine  # a quota is there tomorrow too
    why = (
        f"other processes take {taken:.1f} of {reach} cores" if _fewer else f"this process gets {mine} of {reach} cores"
    )
    threads = "1 thread" if min(free, mine) == 1 else f"{min(free, mine)} threads"
    say(f"{why}: {threads} and not {usual}; --threads N decides")


def fewer_than_usual() -> bool:
    """Whether other processes are why there are as few threads as there are."""
    return _fewer


def as_before(run: Mapping[str, Any]) -> None:
    """Go on with the threads of a run's ``run.json``: speed and the order of sums depend on them."""
    then = ((run.get("environment") or {}).get("cpu") or {}).get("torch_threads")
    if isinstance(then, int) and then > 0 and "OMP_NUM_THREADS" not in os.environ and then != torch.get_num_threads():
        set_threads(then)
