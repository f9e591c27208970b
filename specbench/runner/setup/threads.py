"""Threads of a step on a CPU: those that a plan asks for, else as many as there are free cores.

Threads wait for each other after every product of a step. One that has to wait for its core holds up all, each time, so
one thread more than there are free cores costs far more than the core that it lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specbench.hardware import MachineSample, cores_in_reach, sample_delta, sample_machine, usable_cores

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


def taken_since(before: MachineSample) -> float:
    """Cores that others took since an earlier sample; 0 where too little time has passed to tell."""
    look = sample_delta(before, sample_machine(), 0)
    return 0.0 if look is None else (look.others_cores or 0.0) + (look.stolen_cores or 0.0)


def leave_cores(taken: float, say: Callable[[str], None]) -> None:
    """Takes no thread that gets no core, where neither a plan nor the environment says how many: others may have it.

    Args:
        taken: cores that others take.
        say: takes a line where there are fewer than otherwise.
    """
    global _fewer
    if "OMP_NUM_THREADS" in os.environ:
        return
    usual = torch.get_num_threads()
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
    """Goes on with the threads that a run began with, of which speed and the order of sums depend.

    Args:
        run: content of its ``run.json``; one that does not say leaves them as they are.
    """
    then = ((run.get("environment") or {}).get("cpu") or {}).get("torch_threads")
    if isinstance(then, int) and then > 0 and "OMP_NUM_THREADS" not in os.environ and then != torch.get_num_threads():
        set_threads(then)
