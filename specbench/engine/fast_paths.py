"""Try code that some machines cannot run, and report why it cannot be used."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import torch

from specbench.common import SpecbenchError, one_line

#: A fast path must be faster by this factor, which is more than timing noise: it rounds differently, so a choice by
#: noise could change the generated text from run to run.
WORTH = 1.03


def fault(attempt: Callable[[], object]) -> str:
    """Call ``attempt`` and return why it fails in one line, or an empty string if it succeeds."""
    try:
        attempt()
    except Exception as error:  # a compiler, a driver or a package built for another torch may raise anything
        return reason(error)
    return ""


def reason(error: BaseException) -> str:
    """Describe an error in one line; for one of our own errors, describe its cause instead."""
    while isinstance(error, SpecbenchError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    text = one_line((str(error).splitlines() or [""])[0], 200)
    return text if isinstance(error, SpecbenchError) else f"{type(error).__name__}: {text}"


def triton_fault(device: torch.device) -> str:
    """Return why Triton kernels cannot be used, or an empty string; on a CUDA device, launch one to find out."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type != "cuda" or interpreted():
        return ""
    return found if not (found := _launch_fault(device)) else f"triton cannot run a kernel here ({found})"


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, as tests on a machine without a GPU do."""
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def _launch_fault(device: torch.device) -> str:
    return fault(lambda: _launch(device))


def _launch(device: torch.device) -> None:
    """Compile and run our smallest kernel, which like all of them needs a C compiler and support for the GPU."""
    from specbench.engine.kernels.gated import gated

    gated(torch.zeros(1, 32, dtype=torch.float32, device=device), "silu")
    torch.cuda.synchronize(device)
