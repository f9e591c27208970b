"""Attention masks of packed sequences: a rule, as a dense mask for SDPA and as a BlockMask for FlexAttention.

In :class:`AttentionMask`, the rule of consistency training, a token sees only tokens of its own sample at its own or
earlier positions, and among these:

* the prompt;
* its own stream: all of it, or for a noisy token the part in the same window of blocks;
* for a noisy token also the clean text in earlier windows.

One window over the whole answer is Jacobi Forcing's noise-conditioned mask: noisy blocks see noisy blocks and never the
clean text. Windows of one block give the clean context of CLLM's loss: a noisy block sees the answer's text before it.
Sizes in between are meant by the released ``..._multiblock_window`` trainer, whose option for it has no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.training.objectives.packing import CLEAN, PROMPT, Packed


class AttentionMask:
    """Attention mask of a batch.

    Args:
        window: W, blocks per window; None is one window over all blocks.
        reach: size of sliding-window attention, in positions and including the token itself; None is unlimited.
    """

    def __init__(self, packed: Packed, window: int | None = None, reach: int | None = None) -> None:
        self._packed, self._reach = packed, reach
        self._windows = packed.block.div(window, rounding_mode="floor") if window else torch.zeros_like(packed.block)

    def sees(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return whether column ``query`` of sequence ``row`` sees column ``key``, for indices that broadcast.

        Every column sees itself, padding too: attention over no columns would be NaN.
        """
        packed = self._packed
        mine, other = packed.stream[row, query], packed.stream[row, key]
        window, its = self._windows[row, query], self._windows[row, key]
        before = self._within_reach(row, query, key) & (packed.positions[row, key] <= packed.positions[row, query])
        noisy = mine > CLEAN
        own = (other == mine) & (~noisy | (its == window))
        past = noisy & (other == CLEAN) & (its < window)
        return (query == key) | (before & ((other == PROMPT) | own | past))

    def _within_reach(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return whether both columns belong to the same sample, and ``key`` is not before the sliding window."""
        packed = self._packed
        sample = packed.sample[row, query]
        same = (sample >= 0) & (packed.sample[row, key] == sample)
        if self._reach is None:
            return same
        return same & (packed.positions[row, key] > packed.positions[row, query] - self._reach)

    def dense(self) -> Tensor:
        """Return bool [B, 1, S, S], the mask that a transformers model takes with SDPA."""
        rows, columns = self._packed.ids.shape
        at = torch.arange(max(rows, columns), device=self._packed.ids.device)
        return self.sees(at[:rows, None, None], at[:1], at[:columns, None], at[:columns])[:, None]

    def blocks(self) -> Any:
        """Return a FlexAttention BlockMask [B, 1, S, S]."""
        from torch.nn.attention.flex_attention import create_block_mask

        def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # a bound method is not accepted
            return self.sees(row, head, query, key)

        rows, columns = self._packed.ids.shape
        return create_block_mask(rule, rows, None, columns, columns, device=str(self._packed.ids.device))


class BlockCausalMask(AttentionMask):
    """Attention mask of block diffusion: a token sees its whole block in its own stream, also the tokens after it, and
    the clean text of earlier blocks. There are no windows, and prompts are in the clean stream."""

    def sees(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        packed = self._packed
        mine, other = packed.stream[row, query], packed.stream[row, key]
        block, its = packed.block[row, query], packed.block[row, key]
        seen = ((other == CLEAN) & (its < block)) | ((other == mine) & (its == block))
        return (query == key) | (self._within_reach(row, query, key) & seen)
