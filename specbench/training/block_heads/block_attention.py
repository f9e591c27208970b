"""Attention of training blocks: a row attends to the text before its anchor, and to the earlier or all block rows.

The rule :meth:`BlockAttention.sees` is implemented twice: as a dense product per block for the CPU, and with
FlexAttention for CUDA, where the dense products would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specbench.training.block_heads.blocks import Blocks

#: (q [B, heads, A·R, D], context k, v [B, KV heads, S, D], the blocks' k, v [B, KV heads, A·R, D], scale) -> as q.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]


class BlockAttention:
    """Attention of all blocks of a batch.

    ``blocks``: A blocks for each of B texts; ``length``: S, tokens of the longest text; ``causal``: a row attends to
    the rows before it, not to its whole block; ``flex``: use FlexAttention; default: on CUDA only.
    """

    def __init__(self, blocks: Blocks, length: int, rows: int, causal: bool, flex: bool | None = None) -> None:
        self._blocks, self._length, self._rows, self._causal = blocks, length, rows, causal
        device = blocks.anchors.device
        self._flex = device.type == "cuda" if flex is None else flex
        if self._flex:
            from torch.nn.attention.flex_attention import create_block_mask

            texts, queries = blocks.positions.shape

            def rule(
                text: Tensor, head: Tensor, query: Tensor, key: Tensor
            ) -> Tensor:  # flex_attention does not accept a bound method
                return self.sees(text, head, query, key)

            self._mask = create_block_mask(rule, texts, None, queries, length + queries, device=str(device))
        else:
            before = torch.arange(length, device=device) < blocks.anchors[:, :, None, None]
            inside = torch.ones(rows, rows, dtype=torch.bool, device=device)
            # [B, KV heads, group, A, R, keys]; broadcast over the first two and R
            self._before = before[:, None, None]
            self._inside = inside.tril() if causal else inside

    def sees(self, text: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether row ``query`` of a text's blocks attends to ``key``. Keys: first the context's, then the blocks'."""
        block = query // self._rows
        other = key - self._length
        before = key < self._blocks.anchors[text, block]
        within = (other >= 0) & (other // self._rows == block)
        if self._causal:
            within = within & (other <= query)
        return before | within

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See :data:`Attend`."""
        if self._flex:
            all_keys, all_values = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
            out: Tensor = _flex_attention(query.device.type)(
                query, all_keys, all_values, block_mask=self._mask, scale=scale, enable_gqa=True
            )
            return out
        texts, heads, _, size = query.shape
        groups, rows = key.shape[1], self._rows
        asked = query.view(texts, groups, heads // groups, -1, rows, size)
        own, gives = (x.view(texts, groups, 1, -1, rows, x.shape[-1]) for x in (key, value))
        far = (asked.flatten(2, 4) @ keys.transpose(-1, -2)).view(*asked.shape[:-1], -1)
        near = asked @ own.transpose(-1, -2)
        scores = torch.cat(
            [far.masked_fill(~self._before, -torch.inf), near.masked_fill(~self._inside, -torch.inf)], dim=-1
        )
        weights = (scores * scale).softmax(dim=-1)
        past, here = weights.split([self._length, rows], dim=-1)
        mixed = (past.flatten(2, 4) @ values).view(*asked.shape[:-1], -1) + here @ gives
        return mixed.reshape(texts, heads, -1, value.shape[-1])


@cache
def _flex_attention(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Without compiling, FlexAttention computes all scores. On a CPU only tests use it.
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention
