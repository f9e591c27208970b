"""DSpark's draft head: a block head whose drafts depend on each other through a small Markov head.

DeepSeek 2026, arXiv:2607.05147; ``deepspec/modeling/dspark``. One pass of the body computes an output h_k and base
scores for every position k of the block. The Markov head adds W2 · f(W1[x]) to the scores of position k, where x is the
token before it: the anchor for k = 0, then the draft at k - 1. The confidence head predicts the probability that the
target accepts the draft at k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.heads import BlockHead
from specbench.methods.dspark.config import DSparkConfig


class MarkovHead(nn.Module):
    """Low-rank bias W2 · f(W1[x]); its parameters have DeepSpec's names. r is the rank."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)  # of all the target's tokens
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size or config.vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def latent(self, before: Tensor, outputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return what W2 multiplies, and the next state, both [..., r].

        Args:
            before: [..., r] embeddings W1[x] of the tokens before.
            outputs: [..., H] outputs of the body.
            state: [..., r] zeros at position 0; used by the type "rnn".
        """
        if self.kind == "gated":
            return before * self.gate_proj(torch.cat([outputs, before], dim=-1)).sigmoid(), state
        if self.kind == "rnn":
            gate, candidate, found = self.joint_proj(torch.cat([state, before, outputs], dim=-1)).chunk(3, dim=-1)
            gate = gate.sigmoid()
            return found.tanh(), gate * state + (1 - gate) * candidate.tanh()
        return before, state


class ConfidenceHead(nn.Module):
    """Logit of the probability that a draft is accepted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class DSparkHead(BlockHead):
    """The head. ``confident``: it has a confidence head."""

    CONFIG = DSparkConfig

    def __init__(self, config: DSparkConfig, *, confident: bool | None = None, **own: Any) -> None:
        super().__init__(config, **own)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        if confident is None:
            confident = bool(config.enable_confidence_head)
        self.config = replace(config, enable_confidence_head=confident)
        size = config.hidden_size + (config.markov_rank if config.confidence_head_with_markov else 0)
        self.confidence_head = ConfidenceHead(size) if confident else None

    @classmethod
    def from_file(cls, name: str, config: DSparkConfig, tensors: dict[str, Tensor]) -> dict[str, Any]:
        stored = any(tensor.startswith("confidence_head.") for tensor in tensors)
        confident = stored if config.enable_confidence_head is None else None
        return {**super().from_file(name, config, tensors), "confident": confident}

    def start(self, outputs: Tensor, anchor: Tensor) -> Tensor | None:
        """Return the Markov head's state [..., r] before the first drafted position; None without a Markov head.

        Args:
            outputs: [..., H] output of the anchor's row.
            anchor: integer [...] the anchor.
        """
        markov = self.markov_head
        if markov is None:
            return None
        before = markov.markov_w1(anchor.long())
        state = torch.zeros_like(before)
        # Where the anchor's row drafts nothing, the recurrent state has passed it nevertheless (speculators).
        return state if self.config.sample_from_anchor else markov.latent(before, outputs, state)[1]

    def step(
        self, outputs: Tensor, previous: Tensor, state: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return (what W2 multiplies [..., r], the confidence's logit [...], the next state) at one position.

        Args:
            outputs: [..., H] outputs of the body.
            previous: integer [...] target's ids of the tokens before.
        """
        markov, confidence = self.markov_head, self.confidence_head
        latent, parts = None, [outputs]
        if markov is not None and state is not None:
            before = markov.markov_w1(previous.long())
            latent, state = markov.latent(before, outputs, state)
            parts += [before] if self.config.confidence_head_with_markov else []
        logit = None if confidence is None else confidence.proj(torch.cat(parts, dim=-1))[..., 0].float()
        return latent, logit, state

    def scores(self, base: Tensor, latent: Tensor | None) -> Tensor:
        """Scores [..., drafted tokens]: the base scores and the Markov head's bias."""
        return base if self.markov_head is None else base + self.markov_head.markov_w2(latent)
