"""The loss of a DSpark head (DeepSpec, ``deepspec/modeling/dspark/loss.py``) over sampled blocks.

In training the Markov head reads the text's own tokens, not drafts. With weights exp(-(k - 1) / gamma) over the
offsets k, the loss is the weighted mean of ce · cross-entropy with the text, l1 · Σ|P − Q|, and the confidence head's
binary cross-entropy with the probability that the target accepts a draft, which is 1 − Σ|P − Q| / 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specbench.methods.dspark.head import DSparkHead
from specbench.methods.dspark.learning.distances import distances
from specbench.training import BlockLesson, autocast_weight, score_chunks


class Lesson(BlockLesson):
    """The head with its loss.

    ``ce``, ``l1``, ``confidence``: weights of the three parts; the others as in :class:`BlockLesson`.
    """

    def __init__(
        self, head: DSparkHead, model: Any, *, ce: float = 0.1, l1: float = 0.9, confidence: float = 1.0, **own: Any
    ) -> None:
        super().__init__(head, model, **own)
        self._ce, self._l1, self._confidence = ce, l1, confidence

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] texts, padded at their ends; ``starts``, ``ends``: int64 [B] first position of each
        answer, and tokens of each text. Returns ``loss``; ``agrees``, the share of rows whose best token is the
        target's; ``accepts``, the mean probability of acceptance; ``rows``, the number of learning rows.
        """
        features, last = self.frozen.teach(ids, ends)
        blocks = self.sampled(starts, ends)
        states = self.states(features, ids, blocks)
        places = blocks.anchors[:, :, None] + torch.arange(self.depth + 1, device=ids.device)
        text = ids.gather(1, places.flatten(1).clamp(max=ids.shape[1] - 1)).view_as(places)
        latents, logits = self._forced(states, text[:, :, :-1])
        learns, shares, scorer = blocks.learns, self.shares(blocks), self.frozen.scorer
        needed, taught = self.taught(blocks, ids.shape[1])
        labels, known = self._labels(text[:, :, 1:][learns])
        # Tokens that cannot be drafted have no cross-entropy; the means are over all rows that have one.
        labelled = shares * known / (shares * known).sum().clamp(min=1e-9)
        markov = self.head.markov_head
        found = distances(
            self.drafted(states)[learns],
            latents[learns],
            scorer.weight.new_zeros(len(scorer.weight), 0) if markov is None else markov.markov_w2.weight,
            scorer.weight,
            scorer.bias,
            self._probabilities(last.flatten(0, 1)[needed]),
            taught,
            labels,
            self._ce * labelled,
            self._l1 * shares,
        )
        loss = found.loss
        if logits is not None:
            errors = functional.binary_cross_entropy_with_logits(logits[learns], found.accepted, reduction="none")
            loss = loss + self._confidence * (errors * shares).sum()
        counts = {"agrees": found.agrees.float().mean(), "accepts": found.accepted.mean()}
        return {"loss": loss, **counts, "rows": torch.tensor(len(found.agrees))}

    def _forced(self, states: Tensor, before: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the Markov and confidence heads after the text's own tokens.

        ``states``: [B, A, R, H]; ``before``: int64 [B, A, D]. Returns (latents [B, A, D, r], r = 0 without a Markov
        head; logits of the confidences [B, A, D]).
        """
        state = self.head.start(states[:, :, 0], before[:, :, 0])
        outputs, latents, logits = self.drafted(states), [], []
        for at in range(self.depth):
            latent, logit, state = self.head.step(outputs[:, :, at], before[:, :, at], state)
            latents.append(outputs[:, :, at, :0] if latent is None else latent)
            logits += [] if logit is None else [logit]
        return torch.stack(latents, dim=2), torch.stack(logits, dim=2) if logits else None

    def _labels(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of tokens [M] among those that can be drafted, and whether they can be (else the index is 0)."""
        ids = self.head.draft_ids
        if ids is None:
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        index = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
        known = ids[index] == tokens
        return index * known, known

    @torch.no_grad()
    def _probabilities(self, states: Tensor) -> Tensor:
        """The target's probabilities [N, drafted tokens] after its last states [N, H]."""
        lm_head, ids = self.frozen.lm_head, self.head.draft_ids
        found = []
        weight = autocast_weight(lm_head.weight)
        for here in score_chunks(len(states), weight):
            likely = functional.linear(states[here].to(weight.dtype), weight, lm_head.bias).float().softmax(-1)
            found.append(likely if ids is None else likely[:, ids])
        return torch.cat(found)

    @torch.no_grad()
    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best chain of each block: the Markov head reads the drafts before."""
        blocks, scorer, known = self.every(start, end, ids.device), self.frozen.scorer, self.head.draft_ids
        states = self.states(features, ids, blocks)[0]
        before = ids[0][blocks.anchors[0]]
        state = self.head.start(states[:, 0], before)
        outputs, found = states[:, -self.depth :], []
        for at in range(self.depth):
            latent, _, state = self.head.step(outputs[:, at], before, state)
            base = scorer(outputs[:, at].to(scorer.weight.dtype))
            found.append(self.head.scores(base, latent).argmax(-1))
            before = found[-1] if known is None else known[found[-1]]
        return torch.stack(found, dim=1)
