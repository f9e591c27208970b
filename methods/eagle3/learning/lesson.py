"""The loss of an EAGLE-3 head: compare its distribution at each step of the training-time test with the target's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specbench.methods.eagle3.head import DraftHead
from specbench.methods.eagle3.learning.unrolled import unrolled
from specbench.training import HeadLesson

# Rows whose scores are in memory at once: with a large vocabulary, the scores of all rows would not fit.
_AT_ONCE = 1024


class Lesson(HeadLesson):
    """The head with its loss, Σᵢ decayⁱ · mean over rows of KL(p ‖ qᵢ).

    p is the target's distribution over the tokens that can be drafted, qᵢ the head's at step i. Rows for which the
    target's best token cannot be drafted are left out (SpecForge, ``position_mask``).
    """

    def __init__(
        self,
        head: DraftHead,
        model: Any,
        *,
        steps: int,
        decay: float = 0.8,
        recompute: bool = False,
        keep: bool = False,
    ) -> None:
        super().__init__(head, model, depth=steps, keep=keep)
        self._steps, self._decay, self._recompute = steps, decay, recompute

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] texts, padded at their ends; ``starts``, ``ends``: int64 [B] first position of each
        answer, and tokens of each text. Returns ``loss``; ``kl`` of the first step; ``agrees`` and ``agrees_last``, the
        share of rows whose best token is the target's, in the first and in the last step.
        """
        features, states = self.frozen.teach(ids, ends)
        # Rows whose token and next token are both in the answer; each row predicts the token after its own.
        count = int((ends - 1 - starts).max())
        place = torch.arange(count, device=ids.device)
        rows = ((starts - 1)[:, None] + place).clamp(max=ids.shape[1] - 2)
        taught = self._taught(states.gather(1, (rows + 1)[:, :, None].expand(-1, -1, states.shape[2])))
        total: Any = 0.0
        steps: list[tuple[Tensor, Tensor]] = []
        for step, outputs in enumerate(self._outputs(features, ids, rows, self._steps, self._recompute)):
            learns = place + step < (ends - 1 - starts)[:, None]
            if not bool(learns.any()):
                break
            # At step i, a row predicts the target's token of the row i positions later.
            later = (place + step).clamp(max=count - 1)
            theirs = [part[:, later][learns] for part in taught]
            parts = [
                checkpoint(self._part, mine, *some, use_reentrant=False)
                for mine, *some in zip(
                    outputs[learns].split(_AT_ONCE), *(x.split(_AT_ONCE) for x in theirs), strict=True
                )
            ]
            divergence, agrees, learnt = (torch.stack(each).sum() for each in zip(*parts, strict=True))
            kl = divergence / learnt.clamp(min=1)
            total = total + self._decay**step * kl
            steps.append((kl.detach(), agrees / learns.sum()))
        return {"loss": total, "kl": steps[0][0], "agrees": steps[0][1], "agrees_last": steps[-1][1]}

    @torch.no_grad()
    def _taught(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The target's prediction for rows [B, R, H]: log-probabilities [B, R, Vd] over the draft vocabulary, the
        target's best token [B, R], and whether this token can be drafted [B, R]."""
        scorer, known = self.frozen.lm_head, self.head.draft_ids
        likely, best, can = [], [], []
        for some in states.flatten(0, 1).split(_AT_ONCE):
            scores = scorer(some.to(scorer.weight.dtype)).float()
            first = scores.argmax(-1)
            drafted = scores if known is None else scores[:, known]
            own = drafted.argmax(-1)
            likely.append(drafted.log_softmax(-1))
            best.append(first)
            can.append(first == (own if known is None else known[own]))
        shape = states.shape[:2]
        return torch.cat(likely).unflatten(0, shape), torch.cat(best).view(shape), torch.cat(can).view(shape)

    def _outputs(
        self, features: Tensor, ids: Tensor, rows: Tensor, steps: int, recompute: bool = False
    ) -> Iterator[Tensor]:
        dtype = self.head.dtype
        padded = torch.nn.functional.pad(ids, (0, steps))
        embedded = self.frozen.embed(padded).to(dtype)
        if not any(parameter.requires_grad for parameter in self.frozen.embed.parameters()):
            embedded = embedded.detach()
        return unrolled(self.head, self.head.fuse(features.to(dtype)), embedded, rows, steps, recompute)

    def _part(self, outputs: Tensor, likely: Tensor, best: Tensor, can: Tensor) -> tuple[Tensor, ...]:
        """Sums over some rows: divergence of learning rows, number of rows that agree, number of learning rows."""
        known = self.head.draft_ids
        draft = self.head.scores(outputs).float()
        divergence = (likely.exp() * (likely - draft.log_softmax(-1))).sum(-1)
        own = draft.argmax(-1)
        predicted = own if known is None else known[own]
        return (divergence * can).sum(), (predicted == best).sum(), can.sum()

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best chain after each token.

        A draft counts only if all drafts before it equal the text, and then the head has read the text's tokens. So its
        predictions over the text itself are enough.
        """
        rows = torch.arange(start - 1, end - 2, device=ids.device)[None]
        outputs = self._outputs(features, ids, rows, self.depth)
        return torch.stack([self.head.scores(each)[0].argmax(-1) for each in outputs], dim=1)
