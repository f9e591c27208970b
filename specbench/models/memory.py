"""Whether what is about to be loaded has room, asked before any of it is taken."""

from __future__ import annotations

import torch

from specbench.common import EnvironmentRefused
from specbench.hardware import free_ram_bytes, ram_bytes


def check_memory(nbytes: int, device: torch.device, shown: str) -> None:
    """Refuses weights that a device has no room for; on a CPU the kernel would give it and end the process later."""
    if device.type == "cuda":
        room, _ = torch.cuda.mem_get_info(device)
    else:
        free = free_ram_bytes()
        room = ram_bytes() if free is None else free
    if nbytes > room:
        raise EnvironmentRefused(
            f"no memory for {shown}: its weights have {nbytes / 2**30:.3g} GiB, {device.type} has {room / 2**30:.3g} "
            "free; choose a smaller model or dtype"
        )
