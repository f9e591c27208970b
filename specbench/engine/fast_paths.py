"""Fast paths: code that a machine may be unable to run. Each is tried once, and used or left out with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import torch

from specbench.common import SpecbenchError, one_line

#: A fast path is chosen only where it is faster by more than timing noise: it rounds differently, which can be another
#: text, so that a choice by noise would change answers from run to run.
WORTH = 1.03


def fault(attempt: Callable[[], object]) -> str:
    """Why something cannot be used, by what it raises when it is tried; empty where it runs."""
    try:
        attempt()
    except Exception as error:  # a compiler, a driver or a package built for another torch may raise anything
        return reason(error)
    return ""


def reason(error: BaseException) -> str:
    """An error in one line; in place of an error of our own, which says what to do, what it was made from."""
    while isinstance(error, SpecbenchError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    text = one_line((str(error).splitlines() or [""])[0], 200)
    return text if isinstance(error, SpecbenchError) else f"{type(error).__name__}: {text}"


def triton_fault(device: torch.device) -> str:
    """Why Triton's kernels cannot be used; empty where they can. On a CUDA device one is launched to find out."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" or interpreted():
        return ""
    return found if not (found := _launch_fault(device)) else f"triton cannot run a kernel here ({found})"


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter: the tests do, on a machine without a GPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def _launch_fault(device: torch.device) -> str:
    return fault(lambda: _launch(device))


def _launch(device: torch.device) -> None:
    """Compiles and runs the smallest of our kernels. It needs a C compiler and code for the card, as all of them do."""
    from specbench.engine.kernels.gated import gated

    gated(torch.zeros(1, 32, dtype=torch.float32, device=device), "silu")
    torch.cuda.synchronize(device)
