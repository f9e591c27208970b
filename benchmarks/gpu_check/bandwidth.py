"""The bus: what a copy moves per second, and what a step has to move at least."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from benchmarks.gpu_check.clock import seconds_of


def copy_bandwidth(device: torch.device, nbytes: int = 4 << 30) -> float:
    """Bytes per second, read and written, of a device-to-device copy far larger than any cache; median of 20."""
    if device.type == "cpu":
        nbytes = 256 << 20
    source = torch.ones(nbytes // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    taken = [seconds_of(lambda: target.copy_(source), device) for _ in range(22)][2:]
    return 2 * source.nbytes / median(taken)


def step_bytes(model: Any, context: int) -> int:
    """Bytes that a one-row step must read: every weight once, of an untied embedding one row, and the cache."""
    config = model.config.get_text_config()
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    weights = sum(parameter.nbytes for parameter in model.parameters())
    if embedding.data_ptr() != head.data_ptr():
        weights -= embedding.nbytes - embedding[0].nbytes
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cell = 2 * config.num_hidden_layers * config.num_key_value_heads * size * embedding.element_size()
    return weights + context * cell
