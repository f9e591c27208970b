"""Threads of a step on a CPU: those that a plan asks for, else as many as there are free cores.

Threads wait for each other after every product of a step. One that has to wait for its core holds up all, each time, so
one thread more than there are free cores costs far more than the core that it lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specbench.hardware.cores import Others, usable_cores

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
    """Takes no thread whose core other processes have, where neither a plan nor the environment says how many.

    Args:
        others: made some time ago.
        say: takes a line where there are fewer than otherwise.
    """
    global _fewer
    taken, usual, cores = others.cores(), torch.get_num_threads(), usable_cores()
    if taken is None or "OMP_NUM_THREADS" in os.environ:
        return
    free = max(1, int(cores - taken + 0.5))
    if free < usual:
        set_threads(free)
        _fewer = True
        threads = "1 thread" if free == 1 else f"{free} threads"
        say(f"other processes take {taken:.1f} of {cores} cores: {threads} and not {usual}; --threads N decides")


def fewer_than_usual() -> bool:
    """Whether other processes are why there are as few threads as there are."""
    return _fewer


def as_before(run: Mapping[str, Any]) -> None:
    """Goes on with the threads that a run began with, of which speed and the order of sums depend.

    Args:
        run: content of its ``run.json``; one that does not say leaves them as they are.
    """
    then = ((run.get("environment") or {}).get("cpu") or {}).get("torch_threads")
    if isinstance(then, int) and then > 0 and "OMP_NUM_THREADS" not in os.environ and then != torch.get_num_threads():
        set_threads(then)
