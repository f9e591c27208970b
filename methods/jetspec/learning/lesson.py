"""The loss of a JetSpec head: compare its distributions on sampled blocks with the target's for the same tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.heads import BlockHead
from specbench.methods.jetspec.learning.attention_mask import AttentionMask
from specbench.methods.jetspec.learning.blocks import Blocks, all_of, drawn
from specbench.methods.jetspec.learning.divergence import forward_kl
from specbench.training import HeadLesson


class Lesson(HeadLesson):
    """The head with its loss.

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
        super().__init__(head, model, depth=head.config.block_size - 1, keep=keep)
        self._anchors, self._flex = anchors, flex
        offsets = torch.arange(head.config.block_size - 1)
        self._weights = torch.exp(-offsets / gamma) if gamma else torch.ones(len(offsets))

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] texts, padded at their ends; ``starts``, ``ends``: int64 [B] first position of each
        answer, and tokens of each text. Returns ``loss``, the weighted mean of KL(target || head); ``agrees``, the
        share of rows whose best token is the target's; ``rows``, the number of learning rows.
        """
        rows = self.head.config.block_size
        features, states = self.frozen.teach(ids, ends)
        blocks = drawn(starts, ends, self._anchors, rows)
        hidden = self.states(features, ids, blocks)
        learned = hidden[:, :, 1:][blocks.learns]
        # The target's prediction of the token k after the anchor is its row just before that token.
        texts = torch.arange(len(ids), device=ids.device)[:, None, None] * ids.shape[1]
        taught = (texts + blocks.positions.view(*blocks.anchors.shape, rows)[:, :, :-1])[blocks.learns]
        needed, taught = torch.unique(taught, return_inverse=True)
        scorer = self.frozen.scorer
        with torch.no_grad():
            teacher = scorer(states.flatten(0, 1)[needed].to(scorer.weight.dtype)).float().log_softmax(-1)
        weights = self._weights.to(ids.device).expand_as(blocks.learns)[blocks.learns]
        shares = weights / weights.sum().clamp(min=1e-9)
        loss, _, agrees = forward_kl(learned, scorer.weight, scorer.bias, teacher, taught, shares)
        return {"loss": loss, "agrees": agrees.float().mean(), "rows": torch.tensor(len(agrees))}

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
        sight = AttentionMask(blocks, length, rows, config.causal, self._flex)

        def attend(layer: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return sight(query, *context[layer], key, value, module.scaling).transpose(1, 2)

        masks = torch.full((texts, count, rows), config.mask_token_id, device=ids.device)
        masks[:, :, 0] = ids.gather(1, blocks.anchors)
        embedded = self.frozen.embed(masks.flatten(1)).to(self.head.dtype)
        return self.head(embedded, blocks.positions, attend).unflatten(1, (count, rows))

    @torch.no_grad()
    def logits(self, ids: Tensor, blocks: Blocks) -> Tensor:
        """The head's logits at every offset from 1, [B, A, R - 1, V]; the texts are whole rows of ``ids``."""
        features, _ = self.frozen.teach(ids, torch.full((len(ids),), ids.shape[1]))
        hidden = self.states(features, ids, blocks)[:, :, 1:]
        scorer = self.frozen.scorer
        found: Tensor = scorer(hidden.to(scorer.weight.dtype))
        return found

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best tokens of each block."""
        blocks = all_of(start, end, self.head.config.block_size, ids.device)
        return self.logits(ids, blocks)[0].argmax(-1)
