"""Check before loading that a model fits into memory."""

from __future__ import annotations

import torch

from specbench.common import EnvironmentRefused
from specbench.hardware import free_ram_bytes, ram_bytes


def check_memory(nbytes: int, device: torch.device, shown: str) -> None:
    """Refuse weights larger than the device's free memory; on a CPU the kernel would kill the process later."""
    if device.type == "cuda":
        room, _ = torch.cuda.mem_get_info(device)
    else:
        free = free_ram_bytes()
        room = ram_bytes() if free is None else free
    if nbytes > room:
        raise EnvironmentRefused(
            f"cannot load {shown}: its weights need {nbytes / 2**30:.3g} GiB and {device.type} has "
            f"{room / 2**30:.3g} GiB of free memory; choose a smaller model or dtype"
        )
