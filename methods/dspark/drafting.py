"""DSpark's rounds: one pass of the body over a block, then the Markov head's steps from position to position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.common import UsageError
from specbench.decoding import Drafting, Target, TokenTree
from specbench.engine import HeadRows
from specbench.heads import BlockRounds, Levels, SampledDrafts, chain, grow_levels
from specbench.methods.dspark.head import DSparkHead


def prepare(options: Any, target: Target) -> Drafting:
    """Load the head that the options name and make it ready for a target."""
    head, weights = DSparkHead.prepared("dspark", options.head, target)
    limit = head.config.drafts
    if options.depth is not None and options.depth > limit:
        raise UsageError(
            f"dspark.depth={options.depth} is more than head {weights['head']} drafts: its block has {limit} guesses"
        )
    draws = options.verify == "block"
    if draws and options.confidence and head.confidence_head is None:
        # A chain that ends depending on its last token no longer has the distribution that it was sampled from.
        raise UsageError(
            f"cannot use dspark.confidence with verify=block: head {weights['head']} has no confidence head; leave one "
            "of the two out"
        )
    width = 1 if options.tree == "chain" else options.width
    # A chain with fewer rows than the block needs no further step.
    depth = min(options.depth or limit, options.budget - 1)
    key = "dspark", options.head, depth, width, draws
    rounds = target.once(
        key, lambda: DSparkRounds(head, target, depth=depth, width=width, samples=draws, weights=weights)
    )
    return Drafting(rounds, lambda slot: rounds.tree(slot, options.budget, options.confidence))


class DSparkRounds(BlockRounds):
    """Rounds of a head: S slots, W candidates per path, D levels, C = W + (D - 1) · W² candidates.

    ``width`` 1 drafts a chain. ``samples``: above temperature 0 a chain's tokens are sampled from the head's
    distribution.
    """

    def __init__(
        self,
        head: DSparkHead,
        target: Target,
        *,
        depth: int,
        width: int,
        samples: bool = False,
        weights: Mapping[str, str] | None = None,
    ) -> None:
        self._samples = None
        if samples:
            vocabulary = head.config.draft_vocab_size or target.model.get_output_embeddings().weight.shape[0]
            self._samples = SampledDrafts(target, depth, vocabulary, head.device)
        super().__init__(head, target, depth=depth, width=width, draws=depth if samples else 0, weights=weights)

    def tree(self, slot: int, budget: int, least: float) -> TokenTree:
        """The tree after a slot's text; runs the round if it has not run yet.

        Args:
            least: drafts with a lower confidence are left out, with all drafts after them.
        """
        if self._samples is not None:
            self._samples.update()
        root, (tokens, logp, best, confidence) = self.drafted(slot)
        sure = confidence if len(confidence) else logp.exp()
        if self._width > 1:
            logp = logp.masked_fill(sure < least, -math.inf)
            return Levels(root, tokens.tolist(), logp.tolist(), best.tolist(), self._width).tree(budget)
        kept = int((sure >= least).cumprod(0).sum())
        proposal = None if self._samples is None or not kept else self._samples.proposal(slot, kept, self._ids)
        return chain(root, tokens.tolist()[:kept], logp.tolist()[:kept], proposal)

    def draft(self, rows: HeadRows, found: None) -> Sequence[Tensor]:
        """Return tokens [S, C], log-probabilities [S, C], indices of the candidates that were extended, confidences.

        The order is that of :class:`Levels`. Confidences are [S, C], or [S, 0] for a head without a confidence head.
        """
        head, width = self.head, self._width
        outputs = self._outputs(rows)
        anchor = rows.anchor[:, None]
        state = head.start(outputs[:, :1], anchor)
        outputs = outputs[:, self._drafted]
        base = self._scorer(outputs)
        confidences: list[Tensor] = []

        def best(level: int, before: Tensor) -> tuple[Tensor, Tensor]:
            """The W best tokens after each path [S, paths, W], and their log-probabilities."""
            nonlocal state
            at, paths = slice(level, level + 1), before.shape[1]
            latent, logit, state = head.step(outputs[:, at].expand(-1, paths, -1), before, state)
            scores = head.scores(base[:, at], latent)
            samples = self._samples
            logp, index = rows.best(scores, width) if samples is None else samples.draw(rows, scores, level)
            if logit is not None:
                confidences.append(logit.sigmoid()[:, :, None].expand(-1, -1, width).flatten(1))
            tokens = index if self._ids is None else self._ids[index]
            return tokens.expand(-1, paths, -1), logp.expand(-1, paths, -1)  # without a Markov head all paths agree

        def extend(level: int, before: Tensor, path: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal state
            if state is not None:
                rank = state.shape[2]
                state = state.expand(-1, width, -1) if path is None else state.gather(1, _wide(path, rank))
            return best(level, before)

        tokens, logp = best(0, anchor)
        every, scored, extended = grow_levels(self._depth, width, tokens[:, 0], logp[:, 0], extend)
        return every, scored, extended, torch.cat(confidences, dim=1) if confidences else scored[:, :0]


def _wide(index: Tensor, size: int) -> Tensor:
    return index[:, :, None].expand(-1, -1, size)
