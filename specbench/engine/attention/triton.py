"""The split-KV tree attention kernel as a backend: ancestor bitmasks, cache lengths read on the device."""

from __future__ import annotations

from torch import Tensor

from specbench.engine.attention.interface import Visibility
from specbench.engine.kernels.tree_attention import tree_attention


class TritonAttention:
    """Tree attention of one step; its masks are the bits that :class:`specbench.engine.kernels.ops.TritonOps` makes."""

    def __init__(self, visibility: Visibility) -> None:
        self._see = visibility

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        see = self._see
        return tree_attention(query, key, value, see.lengths, see.rows, see.depth, scale=scale, window=window)
