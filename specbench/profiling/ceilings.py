"""Peak rates of a device: bytes per second and FLOPs per second of plain operations far larger than any cache.

A CPU's memory is read by the same probe that runs use, if it can be built; otherwise by a sum, as on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from specbench.common import EnvironmentRefused
from specbench.engine import LinearKind, Linears, settle
from specbench.hardware import BandwidthProbe, MeasuredCeilings

_REPEATS, _LEAST = 15, 3
_CPU_BYTES = 256 << 20
_SETTLE_S = (
    0.25  # before each reading of the probe: directly after torch's work, readings were 0.5 to 0.7 of this on two cores
)


def measure_ceilings(
    device: torch.device,
    dtype: torch.dtype,
    linears: LinearKind = "torch",
    seconds: float = 10.0,
    say: Callable[[str], None] = lambda line: None,
) -> MeasuredCeilings:
    """Measure bandwidth (a copy, and reading) and arithmetic (a square matrix product): medians of interleaved repeats.

    The product runs through torch and through oneDNN where the model's weights could; the faster one counts.

    ``dtype`` is that of the product; bandwidth is measured on float32, whose sum needs no conversion. After ``seconds``
    three repeats are enough.
    """
    with ExitStack() as stack:
        return _measured(device, dtype, linears, seconds, _opened(device, stack, say))


def _opened(device: torch.device, stack: ExitStack, say: Callable[[str], None]) -> BandwidthProbe | None:
    if device.type != "cpu":
        return None
    try:
        return stack.enter_context(BandwidthProbe(_CPU_BYTES, say))
    except EnvironmentRefused:
        return None


def _measured(
    device: torch.device, dtype: torch.dtype, linears: LinearKind, seconds: float, probe: BandwidthProbe | None
) -> MeasuredCeilings:
    if device.type == "cuda":
        nbytes, size = min(4 << 30, torch.cuda.mem_get_info(device)[0] // 4), 8192
    else:
        nbytes, size = _CPU_BYTES, 2048
    # Random numbers: on zeros a device draws less power, and its clock depends on power.
    source = torch.randn(1 << 20, dtype=torch.float32, device=device).repeat(max(1, nbytes >> 22))
    target = torch.empty_like(source)
    x = torch.randn(size, size, dtype=dtype, device=device)
    layer = nn.Linear(size, size, bias=False, dtype=dtype, device=device).requires_grad_(False)
    products: dict[str, Callable[[], Any]] = {"torch": lambda: torch.mm(x, layer.weight.T)}
    if linears != "torch":
        packed = Linears(nn.Sequential(layer), linears)
        packed.attach()
        products[linears] = lambda: layer(x)

    def read() -> float:
        if probe is None:
            return _seconds(source.sum, device)
        return source.nbytes / probe.read(torch.get_num_threads(), readings=1, settle_s=_SETTLE_S)

    work: dict[str, Callable[[], float]] = {
        "copy": partial(_seconds, lambda: target.copy_(source), device),
        "read": read,
        **{name: partial(_seconds, call, device) for name, call in products.items()},
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    began = time.perf_counter()
    with torch.inference_mode():
        for takes in work.values():  # the first call touches memory and creates library handles
            takes()
        for at in range(_REPEATS):
            if at >= _LEAST and time.perf_counter() - began > seconds:
                break
            for name, takes in work.items():
                taken[name].append(takes())
    if linears != "torch":
        packed.detach()
    return MeasuredCeilings(
        copy_bytes_per_s=2 * source.nbytes / median(taken["copy"]),
        read_bytes_per_s=source.nbytes / median(taken["read"]),
        flops_per_s=2 * size**3 / min(median(taken[name]) for name in products),
        buffer_bytes=source.nbytes,
        matmul_size=size,
        repeats=len(taken["copy"]),
    )


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Time one call, with the device idle before and after it."""
    settle(device)
    began = time.perf_counter()
    call()
    settle(device)
    return time.perf_counter() - began
