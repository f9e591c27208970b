"""Wall-clock time of device work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    settle(device)
    started = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - started


def settle(device: torch.device) -> None:
    """Returns when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
