"""Programmatic dependent launch: a kernel starts while the one before it ends, and waits for its results itself.

What a kernel does before it waits (its start, and the first weights of a product) then costs no time of its own. It
takes a GPU of compute capability 9.0 or more and a triton that has it; elsewhere the kernels are compiled without it.
No card has run it yet, so it is off unless the environment variable :data:`SWITCH` is ``on``.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # before triton 3.5
    gdc_launch_dependents = gdc_wait = None

#: ``on`` compiles the kernels with it.
SWITCH = "SPECBENCH_PDL"
_CAPABILITY = (9, 0)


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Lets the next kernel start, and waits until the one before has finished; before any other read or write.

    A kernel that is launched so and does not wait would let the next one overtake the kernels before it.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def why_not(device: torch.device) -> str:
    """Why kernels on a device are launched one after the other; empty where they are not."""
    if os.environ.get(SWITCH, "").lower() != "on":
        return f"{SWITCH} is not on"
    return _lacks(device)


@cache
def _lacks(device: torch.device) -> str:
    if device.type != "cuda" or torch.version.hip is not None:
        return "it is for CUDA devices"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"it takes a GPU of compute capability {_CAPABILITY[0]}.{_CAPABILITY[1]}"
    return "" if available() else f"triton {triton.__version__} does not have it"


@cache
def available() -> bool:
    """Whether the installed triton has the instructions and the option of a launch."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    return gdc_wait is not None and "launch_pdl" in CUDAOptions.__dataclass_fields__


@cache
def counters(device: torch.device, site: int, count: int) -> Tensor:
    """int32 [count], zeros, for the programs of one launch site to count themselves in; each launch leaves zeros.

    Kept for good, because captured launches hold its address; made at a site's first launch, which therefore may not be
    inside a capture. No two sites share one, so that launches of different sites may overlap.

    Args:
        device: of the launch.
        site: address of what this site alone reads, such as a weight.
        count: programs that count apart.
    """
    return torch.zeros(count, dtype=torch.int32, device=device)


def options(device: torch.device) -> dict[str, Any]:
    """What a launch is given: the kernel's ``PDL``, and the option of the launch."""
    return {"PDL": False} if why_not(device) else {"PDL": True, "launch_pdl": True}
