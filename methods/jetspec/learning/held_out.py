"""Measure a head's drafts on held-out texts, without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.training import Accepted, Text, leading

#: JetSpec calls a branch faithful if its gap is below the first number of nats, unfaithful from the second number on.
FAITHFUL, UNFAITHFUL = 5.0, 80.0


@dataclass(frozen=True)
class HeldOut:
    """The result of drafting held-out answers of the target with the head's best branch.

    Attributes:
        accepted: accepted lengths of the branch, which is a chain.
        gaps: per text with a whole block, the median over its blocks of JetSpec's branch gap (project page, ablations):
            the head's log-probability of its own best branch minus the *head's* log-probability of the answer's tokens,
            in nats. It is at least 0, and infinite if the answer has a token outside the draft vocabulary.
    """

    accepted: Accepted
    gaps: Sequence[float]

    @property
    def figures(self) -> Mapping[str, float]:
        """Figures for the model card; shares are of the texts."""
        found = dict(self.accepted.look.figures)
        if self.gaps:
            middle = torch.tensor(self.gaps).median().item()
            found |= {
                **({"branch_gap_nats": round(middle, 2)} if middle < float("inf") else {}),
                "branches_below_5_nats": round(sum(gap < FAITHFUL for gap in self.gaps) / len(self.gaps), 4),
                "branches_from_80_nats": round(sum(gap >= UNFAITHFUL for gap in self.gaps) / len(self.gaps), 4),
            }
        return found


def held_out(lesson: Lesson, texts: Sequence[Text], device: torch.device) -> HeldOut:
    """Measure a head on answers of the target itself."""
    known = lesson.head.draft_ids
    right, gaps = [], []
    for ids, start, end in lesson.answers(texts, device):
        blocks = lesson.every(start, end, device)
        logits = lesson.logits(ids, blocks)[0]
        best = logits.argmax(-1)
        right.append(leading(best if known is None else known[best], ids[0], blocks.anchors[0], end))
        whole = blocks.learns[0].all(-1)
        if whole.any():
            anchors = blocks.anchors[0][whole]
            tokens = ids[0][anchors[:, None] + torch.arange(1, lesson.depth + 1, device=device)]
            gaps.append(branch_gaps(logits[whole].float(), tokens, known).median().item())
    return HeldOut(Accepted.of(right, lesson.depth), gaps)


def branch_gaps(logits: Tensor, tokens: Tensor, known: Tensor | None) -> Tensor:
    """Nats by which a head prefers its own best branch to another branch, [A].

    ``logits``: [A, D, draft vocabulary], each position scored without seeing the drafts before it; ``tokens``: int64
    [A, D] the other branch; ``known``: the token of each column; None if that is its index.
    """
    if known is None:
        own = logits.gather(-1, tokens[..., None])[..., 0]
    else:
        column = torch.full((int(max(known.max(), tokens.max())) + 1,), -1, device=known.device)
        column[known] = torch.arange(len(known), device=known.device)
        at = column[tokens]
        own = logits.gather(-1, at.clamp(min=0)[..., None])[..., 0].masked_fill(at < 0, -torch.inf)
    return (logits.amax(-1) - own).sum(-1)
