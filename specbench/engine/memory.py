"""Widths of a loaded model that decide the memory of its steps, and the free memory of its device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specbench.engine.cache import LayerShape
from specbench.engine.memory_budget import Widths
from specbench.hardware import free_ram_bytes


def widths(model: Any, shapes: dict[int, LayerShape]) -> Widths:
    """Return the widths of a model whose layers store keys and values of ``shapes``."""
    head, words = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    # Three times the widest product of a layer: its input, its output, and the gate of a gated MLP.
    products = [each.weight for each in model.modules() if isinstance(each, nn.Linear) and each.weight is not head]
    widest = max((max(weight.shape) for weight in products), default=words.shape[1])
    token = model.dtype.itemsize * sum(heads * (key + value) for heads, key, value in shapes.values())
    return Widths(words.shape[1], 3 * widest, head.shape[0], token, model.dtype.itemsize)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # free in torch's allocator
        return torch.cuda.mem_get_info(device)[0] + kept
    return free_ram_bytes() if device.type == "cpu" else None


_MESSAGES = ("out of memory", "not enough memory", "allocate memory")  # "memory" alone would match illegal accesses


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    matches = isinstance(error, RuntimeError) and any(words in str(error) for words in _MESSAGES)
    return matches or isinstance(error, (torch.OutOfMemoryError, MemoryError))
