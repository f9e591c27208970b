"""Choose the threads of a step on a CPU: the plan's number, otherwise the number of free cores.

Threads wait for each other after every product of a step. A thread that waits for its core delays all of them each
time, so one thread more than free cores costs far more than one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from specbench.hardware import MachineSample, cores_in_reach, sample_delta, sample_machine, usable_cores

_threads: tuple[int, int] | None = (
    None  # torch's number before the first plan of this process, and the number set since
)
_fewer = False  # whether other processes were the reason


def set_threads(wanted: int | None) -> None:
    """Set torch's threads to the plan's number; a plan without one gets the original number."""
    global _threads, _fewer
    _fewer = False
    if _threads is not None and torch.get_num_threads() != _threads[1]:
        _threads = None  # the process changed it itself since
    if wanted is not None:
        _threads = (_threads[0] if _threads else torch.get_num_threads(), wanted)
        torch.set_num_threads(wanted)
    elif _threads is not None:
        torch.set_num_threads(_threads[0])
        _threads = None


def taken_since(before: MachineSample) -> float:
    """Cores that other processes used since an earlier sample; 0 if too little time has passed."""
    look = sample_delta(before, sample_machine(), 0)
    return 0.0 if look is None else (look.others_cores or 0.0) + (look.stolen_cores or 0.0)


def leave_cores(taken: float, say: Callable[[str], None]) -> None:
    """Leave out threads without a free core, unless the plan or the environment sets the number.

    Args:
        taken: cores used by other processes.
        say: receives a line if there are fewer threads than usual.
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
    _fewer = free < mine  # a quota is permanent
    why = (
        f"other processes use {taken:.1f} of {reach} cores" if _fewer else f"this process gets {mine} of {reach} cores"
    )
    threads = "1 thread" if min(free, mine) == 1 else f"{min(free, mine)} threads"
    say(f"{why}: {threads} instead of {usual}; --threads N overrides")


def fewer_than_usual() -> bool:
    """Whether other processes are the reason for the number of threads."""
    return _fewer


def as_before(run: Mapping[str, Any]) -> None:
    """Use the threads that a run began with, because speed and the order of sums depend on them.

    Args:
        run: content of its ``run.json``; without a number the threads stay unchanged.
    """
    then = ((run.get("environment") or {}).get("cpu") or {}).get("torch_threads")
    if isinstance(then, int) and then > 0 and "OMP_NUM_THREADS" not in os.environ and then != torch.get_num_threads():
        set_threads(then)
