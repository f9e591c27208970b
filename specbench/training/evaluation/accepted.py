"""Accepted length of a head's best chain on known answers, without an engine: the answers are the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.training.loop.stopping import Look


@dataclass(frozen=True)
class Accepted:
    """Accepted lengths of a head's chain.

    A greedy answer is what the target says at each of its positions, so a draft is accepted as far as it is the text;
    of a sampled one the same holds, its noise being the position's.

    Attributes:
        tokens: behind the first token of each answer.
        rounds: forwards of the target that emit them.
        depths: share of anchors whose first 1, 2, … drafts are all right.
    """

    tokens: int
    rounds: int
    depths: tuple[float, ...]

    @property
    def accepted_length(self) -> float:
        """Tokens per round, the bonus token included (τ of JetSpec and EAGLE-3)."""
        return self.tokens / max(1, self.rounds)

    @property
    def look(self) -> Look:
        """The same as a training says and records it."""
        depths = " ".join(f"{share:.2f}" for share in self.depths)
        figures = {"accepted_length": round(self.accepted_length, 4), "depths": list(self.depths)}
        return Look(figures, f"accepted length {self.accepted_length:.2f}, by depth {depths}")

    @classmethod
    def of(cls, right: Sequence[Tensor], depth: int) -> Accepted:
        """Accepted lengths of decoding each answer from its first token on.

        Args:
            right: per answer of n tokens, int64 [n - 1] how many drafts behind its first, second, … token are the
                text's, from the first draft on (:func:`leading`).
        """
        rounds = 0
        counts = torch.zeros(depth)
        for one in right:
            counts += (one[:, None].cpu() > torch.arange(depth)).sum(0)
            at, lengths = 0, one.tolist()
            while at < len(lengths):
                # Beyond the text nothing counts: the bonus token of the last round may already have been its end.
                at += lengths[at] + 1
                rounds += 1
        tokens = sum(len(one) for one in right)
        return cls(tokens, rounds, tuple(round(float(share), 4) for share in counts / max(1, tokens)))


def leading(drafts: Tensor, ids: Tensor, anchors: Tensor, end: int) -> Tensor:
    """How many drafts behind each anchor are the text's tokens, from the first on: int64 [A].

    Args:
        drafts: int64 [A, D]; column 0 is the one right behind the anchor.
        ids: int64 [S] the text.
        anchors: int64 [A] positions.
    """
    places = anchors[:, None] + torch.arange(1, drafts.shape[1] + 1, device=ids.device)
    right = (places < end) & (drafts == ids[places.clamp(max=end - 1)])
    return right.int().cumprod(dim=1).sum(dim=1)
