"""flash-attn's KV-cache kernel (Dao, 2023), for chains: it knows a causal order and no tree."""

from __future__ import annotations

from torch import Tensor

from specbench.engine.attention.interface import Visibility


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
