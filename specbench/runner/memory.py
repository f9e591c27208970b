"""Memory: the most that torch's allocator has held on a GPU since it was last asked to forget."""

from __future__ import annotations

import torch


class PeakMemory:
    """The allocator's high-water mark of one GPU: tensors, weights and cache included, what it keeps in reserve not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Begins anew, from what is held now."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Bytes, the most since :meth:`reset`."""
        return torch.cuda.max_memory_allocated(self._device)


def peak_memory(device: torch.device) -> PeakMemory | None:
    """That of a device; None for a CPU, whose memory torch does not count."""
    return PeakMemory(device) if device.type == "cuda" else None
