"""The loss of Medusa's heads on a frozen target (Medusa-1, Cai et al. 2024, §2.2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specbench.methods.medusa.head import DraftHead
from specbench.training import HeadLesson, forward_kl

# Scores in memory at once: with a large vocabulary, the scores of all rows and heads would not fit.
_AT_ONCE = 1 << 25


class Lesson(HeadLesson):
    """The heads with their loss, Σₖ decayᵏ · mean over rows of head k's loss, with k from 0.

    The row at position t of a text is the target's last hidden state there; head k predicts token t + 2 + k. With
    ``distil``, a head's loss is KL(p ‖ q) from the target's distribution p of that token over the draft vocabulary;
    otherwise it is the cross-entropy of the text's token. Rows whose token cannot be drafted are left out.
    """

    def __init__(
        self, head: DraftHead, model: Any, *, decay: float = 0.8, distil: bool = False, keep: bool = False
    ) -> None:
        super().__init__(head, model, depth=head.config.heads, keep=keep)
        self._decay, self._distil = decay, distil
        ids = head.draft_ids
        self._column = torch.arange(head.config.vocab_size)  # of each token among the drafted ones; -1 for others
        if ids is not None:
            self._column = torch.full_like(self._column, -1).index_put_((ids.cpu(),), torch.arange(len(ids)))

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """Return ``loss``; ``agrees`` and ``agrees_last``, the share of rows whose token the first and the last head
        predict."""
        _, states = self.frozen.teach(ids, ends)
        places = torch.arange(ids.shape[1], device=ids.device)
        # The token after a row is in the answer, since it is the root of a tree.
        rows = (places >= starts[:, None] - 1) & (places < ends[:, None] - 2)
        text, place = rows.nonzero(as_tuple=True)
        later = place[:, None] + torch.arange(2, 2 + self.depth, device=ids.device)
        inside = later < ends[text, None]
        later = later.clamp(max=ids.shape[1] - 1)
        labels = self._column.to(ids.device)[ids[text[:, None], later]]
        labels = labels.masked_fill(~inside, -1)
        taught = states[text[:, None], later - 1] if self._distil else None
        found = states[text, place].to(self.head.dtype)
        step = max(1, _AT_ONCE // (self.head.config.drafted * self.depth))
        sums = []
        for at in range(0, len(found), step):
            here = slice(at, at + step)
            teacher = None if taught is None else taught[here]
            sums.append(checkpoint(self._part, found[here], labels[here], teacher, use_reentrant=False))
        losses, right = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
        learnt = (labels >= 0).sum(0)
        means, shares = losses / learnt.clamp(min=1), right / learnt.clamp(min=1)
        weights = self._decay ** torch.arange(self.depth, device=ids.device)
        return {"loss": (weights * means).sum(), "agrees": shares[0], "agrees_last": shares[-1]}

    def _part(self, states: Tensor, labels: Tensor, teacher: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sums of some rows by head: losses, and how often the best token is the label. ``labels`` -1 are left out."""
        scores = self.head.scores(self.head(states, self.depth), self.frozen.scorer).float()
        learns, label = labels >= 0, labels.clamp(min=0)
        if teacher is None:
            loss = -scores.log_softmax(-1).gather(-1, label[..., None])[..., 0]
        else:
            with torch.no_grad():
                scorer: Any = self.head.scorer(self.frozen.lm_head)
                target = scorer(teacher.to(scorer.weight.dtype)).float()
            loss = forward_kl(scores.flatten(0, 1), target.flatten(0, 1)).view(label.shape)
        return (loss * learns).sum(0), ((scores.argmax(-1) == label) & learns).sum(0)

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best token of every head."""
        states = features[0, start - 1 : end - 2].to(self.head.dtype)
        return self.head.scores(self.head(states, self.depth), self.frozen.scorer).argmax(-1)


@torch.no_grad()
def start_from_target(head: DraftHead, model: Any) -> None:
    """Let each head predict what the target's LM head predicts: blocks of zeros are identities (as released)."""
    for parameter in head.blocks.parameters():
        parameter.zero_()
    if head.config.scorer == "own":
        rows = head.scorer(model.get_output_embeddings()).weight
        for parameter in head.lm_heads.parameters():
            parameter.copy_(rows)
