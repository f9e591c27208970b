"""Who sees whom in packed sequences: one rule, as a dense mask for SDPA and as a BlockMask for FlexAttention.

A token sees tokens of its own sample, at its own position or before it:

* the prompt;
* of its own stream everything, or, in a noisy stream, what lies in its own window of blocks;
* from a noisy stream also the clean text, of the windows before its own.

One window over the whole answer is Jacobi Forcing's noise-conditioned mask: noisy blocks see noisy blocks, and the
streams never meet. Windows of one block are the clean context of CLLM's loss: a noisy block sees the answer's own text
before it. Those in between are the released ``..._multiblock_window`` trainer's, whose option for it is without effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.training.objectives.packing import CLEAN, PROMPT, Packed


class Sight:
    """Visibility in a batch.

    Args:
        window: W, blocks of a window; None is one window over all.
        reach: positions back that a token sees at most, itself included, as in sliding-window layers; None is all.
    """

    def __init__(self, packed: Packed, window: int | None = None, reach: int | None = None) -> None:
        self._packed, self._reach = packed, reach
        self._windows = packed.block.div(window, rounding_mode="floor") if window else torch.zeros_like(packed.block)

    def sees(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether column ``query`` of sequence ``row`` sees column ``key``; indices that broadcast, as FlexAttention's.

        A column that fills a sequence up sees itself: attention over nothing is not a number.
        """
        packed = self._packed
        sample, place = packed.sample[row, query], packed.positions[row, query]
        mine, other = packed.stream[row, query], packed.stream[row, key]
        window, its = self._windows[row, query], self._windows[row, key]
        before = (sample >= 0) & (packed.sample[row, key] == sample) & (packed.positions[row, key] <= place)
        if self._reach is not None:
            before = before & (packed.positions[row, key] > place - self._reach)
        noisy = mine > CLEAN
        own = (other == mine) & (~noisy | (its == window))
        past = noisy & (other == CLEAN) & (its < window)
        return (query == key) | (before & ((other == PROMPT) | own | past))

    def dense(self) -> Tensor:
        """bool [B, 1, S, S], as a transformers model takes it through SDPA."""
        rows, columns = self._packed.ids.shape
        at = torch.arange(max(rows, columns), device=self._packed.ids.device)
        return self.sees(at[:rows, None, None], at[:1], at[:columns, None], at[:columns])[:, None]

    def blocks(self) -> Any:
        """A FlexAttention BlockMask [B, 1, S, S]."""
        from torch.nn.attention.flex_attention import create_block_mask

        def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # it takes no method
            return self.sees(row, head, query, key)

        rows, columns = self._packed.ids.shape
        return create_block_mask(rule, rows, None, columns, columns, device=str(self._packed.ids.device))
