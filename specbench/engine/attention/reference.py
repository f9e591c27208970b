"""The oracle: a dense additive mask through torch's scaled_dot_product_attention, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.attention.interface import Visibility


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
