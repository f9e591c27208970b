"""Memory: what of a loaded model decides the size of its steps, and what its device has left."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specbench.engine.cache import LayerShape
from specbench.engine.memory_budget import Widths
from specbench.hardware import free_ram_bytes


def widths(model: Any, shapes: dict[int, LayerShape]) -> Widths:
    """Those of a model whose layers store ``shapes``."""
    head, words = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    # Of a layer's products the widest, with what goes into it and what is multiplied with it in a gated MLP.
    products = [each.weight for each in model.modules() if isinstance(each, nn.Linear) and each.weight is not head]
    widest = max((max(weight.shape) for weight in products), default=words.shape[1])
    token = model.dtype.itemsize * sum(heads * (key + value) for heads, key, value in shapes.values())
    return Widths(words.shape[1], 3 * widest, head.shape[0], token, model.dtype.itemsize)


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device; None where nothing says."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by the allocator, for reuse
        return torch.cuda.mem_get_info(device)[0] + kept
    return free_ram_bytes() if device.type == "cpu" else None


_SAID = ("out of memory", "not enough memory", "allocate memory")  # and not an illegal access of it


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    return said or isinstance(error, (torch.OutOfMemoryError, MemoryError))
