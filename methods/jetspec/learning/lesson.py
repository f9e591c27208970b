"""The loss of a JetSpec head: compare its distributions on sampled blocks with the target's for the same tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.training import BlockLesson, Blocks, scored_kl


class Lesson(BlockLesson):
    """The head with its loss."""

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] texts, padded at their ends; ``starts``, ``ends``: int64 [B] first position of each
        answer, and tokens of each text. Returns ``loss``, the weighted mean of KL(target || head); ``agrees``, the
        share of rows whose best token is the target's; ``rows``, the number of learning rows.
        """
        features, states = self.frozen.teach(ids, ends)
        blocks = self.sampled(starts, ends)
        learned = self.drafted(self.states(features, ids, blocks))[blocks.learns]
        needed, taught = self.taught(blocks, ids.shape[1])
        scorer = self.frozen.scorer
        with torch.no_grad():
            teacher = scorer(states.flatten(0, 1)[needed].to(scorer.weight.dtype)).float().log_softmax(-1)
        loss, _, agrees = scored_kl(learned, scorer.weight, scorer.bias, teacher, taught, self.shares(blocks))
        return {"loss": loss, "agrees": agrees.float().mean(), "rows": torch.tensor(len(agrees))}

    @torch.no_grad()
    def logits(self, ids: Tensor, blocks: Blocks) -> Tensor:
        """The head's logits for every drafted token, [B, A, D, V]; the texts are whole rows of ``ids``."""
        features, _ = self.frozen.teach(ids, torch.full((len(ids),), ids.shape[1]))
        hidden = self.drafted(self.states(features, ids, blocks))
        scorer = self.frozen.scorer
        found: Tensor = scorer(hidden.to(scorer.weight.dtype))
        return found

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best tokens of each block."""
        return self.logits(ids, self.every(start, end, ids.device))[0].argmax(-1)
