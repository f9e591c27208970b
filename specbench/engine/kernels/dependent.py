"""Programmatic dependent launch: a kernel starts while the previous one ends, and waits for its results itself.

Work that a kernel does before it waits (its start, loading the first weights of a product) then takes no additional
time. This needs a GPU with compute capability 9.0 or more and a triton version that supports it; otherwise kernels are
compiled without it. On an H100 a step of Qwen3-8B did not become shorter, so it is off unless the environment variable
:data:`SWITCH` is ``on``.
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
    """Let the next kernel start, and wait until the previous one has finished; call it before any read or write.

    A kernel that is launched in this way without waiting would let the next kernel overtake earlier kernels.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def why_not(device: torch.device) -> str:
    """Return why dependent launches are off on a device, or an empty string if they are on."""
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
    """Whether the installed triton has the instructions and the launch option."""
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    return gdc_wait is not None and "launch_pdl" in CUDAOptions.__dataclass_fields__


@cache
def counters(device: torch.device, site: int, count: int) -> Tensor:
    """int32 [count], zeros, in which the programs of one launch site count arrivals; each launch leaves zeros.

    Never freed, because captured launches use its address; allocated at a site's first launch, which therefore must not
    be inside a capture. Each site has its own counters, so that launches of different sites may overlap.

    Args:
        device: device of the launch.
        site: address of data that only this site reads, such as a weight.
        count: number of counters.
    """
    return torch.zeros(count, dtype=torch.int32, device=device)


def options(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch: the kernel's ``PDL``, and the launch option."""
    return {"PDL": False} if why_not(device) else {"PDL": True, "launch_pdl": True}
