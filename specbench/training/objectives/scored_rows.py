"""Score rows with a frozen LM head chunk by chunk, in the precision and the chunks that suit the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Scores held at a time. On a CPU they stay in its caches: with 2^24 a step's forward took a third longer. On a GPU
#: more rows fill it better, and only its memory limits them.
_CPU_SCORES, _GPU_SCORES = 1 << 21, 1 << 25


def score_chunks(rows: int, weight: Tensor) -> Iterator[slice]:
    """Yield slices of ``rows`` rows whose scores with an LM head's ``weight`` [V, H] are held at a time."""
    held = _CPU_SCORES if weight.device.type == "cpu" else _GPU_SCORES
    step = max(1, held // len(weight))
    return (slice(start, start + step) for start in range(0, rows, step))


def autocast_weight(weight: Tensor) -> Tensor:
    """Convert a frozen weight to the precision that autocast multiplies in, once instead of in each product."""
    device = weight.device.type
    return weight.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else weight
