"""Run a block head over the blocks of a training step, or over all blocks of a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.heads import BlockHead
from specbench.training.block_heads.block_attention import BlockAttention
from specbench.training.block_heads.blocks import Blocks, every_block, sample_blocks
from specbench.training.head_training import HeadLesson


class BlockLesson(HeadLesson):
    """A head with its loss over sampled blocks.

    Shapes: B texts of at most S tokens, A blocks of R rows for each, D drafted tokens per block.

    ``anchors``: blocks per text in a step; ``gamma``: weight of offset k is exp(-(k - 1) / gamma), as in DFlash; 0
    weighs all offsets equally, as in JetSpec.
    """

    def __init__(
        self,
        head: BlockHead,
        model: Any,
        *,
        anchors: int,
        gamma: float = 0.0,
        flex: bool | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__(head, model, depth=head.config.drafts, keep=keep)
        self._anchors, self._flex = anchors, flex
        offsets = torch.arange(self.depth)
        self._weights = torch.exp(-offsets / gamma) if gamma else torch.ones(len(offsets))

    def sampled(self, starts: Tensor, ends: Tensor) -> Blocks:
        """Sample the blocks of a step, see :func:`sample_blocks`."""
        return sample_blocks(starts, ends, self._anchors, self.head.config.block_size, self.depth)

    def every(self, start: int, end: int, device: torch.device) -> Blocks:
        """Return all blocks of a text, see :func:`every_block`."""
        return every_block(start, end, self.head.config.block_size, self.depth, device)

    def shares(self, blocks: Blocks) -> Tensor:
        """Weights of the drafted tokens that are learned, which sum to 1."""
        weights = self._weights.to(blocks.learns.device).expand_as(blocks.learns)[blocks.learns]
        return weights / weights.sum().clamp(min=1e-9)

    def taught(self, blocks: Blocks, length: int) -> tuple[Tensor, Tensor]:
        """Find the target's predictions of the tokens that are learned.

        The target's prediction of the k-th token after the anchor is its row just before that token.

        Returns:
            (N rows among all B × S rows of the target, which of them belongs to each learned token)
        """
        device = blocks.anchors.device
        texts = torch.arange(len(blocks.anchors), device=device)[:, None, None] * length
        rows = texts + blocks.positions.view(*blocks.anchors.shape, -1)[:, :, : self.depth]
        needed, which = torch.unique(rows[blocks.learns], return_inverse=True)
        return needed, which

    def states(self, features: Tensor, ids: Tensor, blocks: Blocks) -> Tensor:
        """Run the head over blocks, each with the text before its anchor: [B, A, R, H] after its last norm.

        ``features``: [B, S, T × H] of the whole texts; ``ids``: int64 [B, S].
        """
        config = self.head.config
        texts, length = ids.shape
        count, rows = blocks.anchors.shape[1], config.block_size
        fused = self.head.fuse(features.to(self.head.dtype))
        positions = torch.arange(length, device=ids.device).expand(texts, -1)
        context: list[tuple[Tensor, Tensor]] = self.head.project_context(fused, positions)
        sight = BlockAttention(blocks, length, rows, config.causal, self._flex)

        def attend(layer: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return sight(query, *context[layer], key, value, module.scaling).transpose(1, 2)

        masks = torch.full((texts, count, rows), config.mask_token_id, device=ids.device)
        masks[:, :, 0] = ids.gather(1, blocks.anchors)
        embedded = self.frozen.embed(masks.flatten(1)).to(self.head.dtype)
        return self.head(embedded, blocks.positions, attend).unflatten(1, (count, rows))

    def drafted(self, states: Tensor) -> Tensor:
        """The rows [B, A, D, H] of :meth:`states` that score drafted tokens."""
        return states[:, :, -self.depth :]
