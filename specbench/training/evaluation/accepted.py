"""Compute the accepted length of a head's best chain on known answers of the target, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.training.loop.stopping import Evaluation


@dataclass(frozen=True)
class Accepted:
    """Accepted lengths of a head's chain.

    The target would emit each token of its own greedy answer again, so drafts are accepted as long as they equal the
    answer. The same holds for a sampled answer, because its noise is fixed per position.

    Attributes:
        tokens: tokens after the first token of each answer, summed.
        rounds: target forwards that emit them.
        depths: share of positions whose first 1, 2, … drafts are all correct.
    """

    tokens: int
    rounds: int
    depths: tuple[float, ...]

    @property
    def accepted_length(self) -> float:
        """Tokens per round, the bonus token included (τ of JetSpec and EAGLE-3)."""
        return self.tokens / max(1, self.rounds)

    @property
    def look(self) -> Evaluation:
        """Accepted lengths as an evaluation of a training."""
        depths = " ".join(f"{share:.2f}" for share in self.depths)
        figures = {"accepted_length": round(self.accepted_length, 4), "depths": list(self.depths)}
        return Evaluation(figures, f"accepted length {self.accepted_length:.2f}, by depth {depths}")

    @classmethod
    def of(cls, right: Sequence[Tensor], depth: int) -> Accepted:
        """Return the accepted lengths of decoding each answer from its first token on.

        Args:
            right: for each answer of n tokens, int64 [n - 1]: the number of leading drafts after its first, second, …
                token that are correct (:func:`leading`).
            depth: drafts per position.
        """
        rounds = 0
        counts = torch.zeros(depth)
        for one in right:
            counts += (one[:, None].cpu() > torch.arange(depth)).sum(0)
            at, lengths = 0, one.tolist()
            while at < len(lengths):
                # May pass the end of the answer: the last round needs no bonus token if its drafts reach the end.
                at += lengths[at] + 1
                rounds += 1
        tokens = sum(len(one) for one in right)
        return cls(tokens, rounds, tuple(round(float(share), 4) for share in counts / max(1, tokens)))


def leading(drafts: Tensor, ids: Tensor, anchors: Tensor, end: int) -> Tensor:
    """Return the number of leading drafts after each anchor that equal the text: int64 [A].

    Args:
        drafts: int64 [A, D]; column 0 is the token right after the anchor.
        ids: int64 [S] the text.
        anchors: int64 [A] positions.
        end: drafts at this position or later are not counted.
    """
    places = anchors[:, None] + torch.arange(1, drafts.shape[1] + 1, device=ids.device)
    right = (places < end) & (drafts == ids[places.clamp(max=end - 1)])
    return right.int().cumprod(dim=1).sum(dim=1)
