"""Attention backends: the oracle, flash-attn for chains, and the split-KV tree attention kernel.

``reference`` is the oracle: a dense additive mask through torch's scaled_dot_product_attention, on any device.
``flash`` is flash-attn's KV-cache kernel (Dao, 2023), which knows a causal order and no tree. ``triton`` is our tree
attention: ancestor bitmasks, cache lengths read on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.attention.interface import Visibility
from specbench.engine.kernels.tree_attention import tree_attention


class FlashAttention:
    """Causal attention of one step's chains, padding rows behind them included: no row before those sees them."""

    def __init__(self, visibility: Visibility) -> None:
        self._lengths = visibility.lengths
        self._rows = visibility.depth.shape[1]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        from flash_attn import flash_attn_with_kvcache  # only where it is installed

        # Row i of Q is aligned with cell (length + i): with the step's own rows counted in, its mask is ours.
        attended: Tensor = flash_attn_with_kvcache(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            cache_seqlens=(self._lengths + self._rows).int(),
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
        )
        return attended


class ReferenceAttention:
    """Dense tree attention for one step; the mask is built once per distinct window and shared by all layers."""

    def __init__(self, visibility: Visibility) -> None:
        self._see = visibility
        self._masks: dict[int | None, Tensor | None] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        if window not in self._masks:
            self._masks[window] = self._mask(window, query.dtype, key.shape[2])
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._masks[window], scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return attended.transpose(1, 2)

    def _mask(self, window: int | None, dtype: torch.dtype, cells: int) -> Tensor | None:
        """Additive mask [S, 1, Q, L], or None when a single row sees every visible cell."""
        see = self._see
        slots, rows = see.depth.shape
        if slots == rows == 1 and see.extent is not None and (window is None or see.extent <= window):
            return None
        cell = torch.arange(cells, device=see.lengths.device)
        lengths = see.lengths.long()
        own = lengths[:, None] + torch.arange(rows, device=cell.device)
        visible = (cell < lengths[:, None, None]).expand(slots, rows, cells)
        visible = visible.scatter(2, own[:, None, :].expand(-1, rows, -1), see.rows)
        if window is not None:
            position = lengths[:, None] + see.depth
            key_position = cell.expand(slots, -1).scatter(1, own, position)
            visible = visible & (key_position[:, None, :] > position[:, :, None] - window)
        hidden = torch.finfo(dtype).min
        return torch.zeros(visible.shape, dtype=dtype, device=cell.device).masked_fill_(~visible, hidden).unsqueeze(1)


class TritonAttention:
    """Tree attention of one step; its masks are the bits that :class:`specbench.engine.kernels.ops.TritonOps` makes."""

    def __init__(self, visibility: Visibility) -> None:
        self._see = visibility

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        see = self._see
        return tree_attention(query, key, value, see.lengths, see.rows, see.depth, scale=scale, window=window)
