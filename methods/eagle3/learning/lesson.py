"""The loss of an EAGLE-3 head: compare its distribution at each step of the training-time test with the target's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from specbench.methods.eagle3.head import DraftHead
from specbench.methods.eagle3.learning.unrolled import unrolled
from specbench.training import HeadLesson, autocast_weight, score_chunks, scored_kl


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
        taught, can = self._taught(states.gather(1, (rows + 1)[:, :, None].expand(-1, -1, states.shape[2])))
        total: Any = 0.0
        steps: list[tuple[Tensor, Tensor]] = []
        for step, outputs in enumerate(self._outputs(features, ids, rows, self._steps, self._recompute)):
            learns = place + step < (ends - 1 - starts)[:, None]
            if not bool(learns.any()):
                break
            # At step i, a row predicts the target's token of the row i positions later.
            later = learns.flatten().nonzero()[:, 0] + step
            learnt = can[later]
            shares = learnt / learnt.sum().clamp(min=1)
            weight = self.head.lm_head.weight
            kl, _, agrees = scored_kl(self.head.scored(outputs[learns]), weight, None, taught, later, shares)
            total = total + self._decay**step * kl
            steps.append((kl.detach(), (agrees & learnt).float().mean()))
        return {"loss": total, "kl": steps[0][0], "agrees": steps[0][1], "agrees_last": steps[-1][1]}

    @torch.no_grad()
    def _taught(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The target's prediction for rows [B, R, H]: log-probabilities [B × R, Vd] over the draft vocabulary, and
        whether the target's best token can be drafted [B × R]."""
        rows, known = states.flatten(0, 1), self.head.draft_ids
        scorer = self.frozen.lm_head
        weight = autocast_weight(scorer.weight)
        likely, can = [], []
        for some in score_chunks(len(rows), weight):
            scores = linear(rows[some].to(weight.dtype), weight, scorer.bias).float()
            drafted = scores if known is None else scores[:, known]
            likely.append(drafted.log_softmax(-1))
            can.append(drafted.amax(-1) == scores.amax(-1))
        return torch.cat(likely), torch.cat(can)

    def _outputs(
        self, features: Tensor, ids: Tensor, rows: Tensor, steps: int, recompute: bool = False
    ) -> Iterator[Tensor]:
        dtype = self.head.dtype
        padded = torch.nn.functional.pad(ids, (0, steps))
        embedded = self.frozen.embed(padded).to(dtype)
        if not any(parameter.requires_grad for parameter in self.frozen.embed.parameters()):
            embedded = embedded.detach()
        return unrolled(self.head, self.head.fuse(features.to(dtype)), embedded, rows, steps, recompute)

    def drafts(self, features: Tensor, ids: Tensor, start: int, end: int) -> Tensor:
        """The best chain after each token.

        A draft counts only if all drafts before it equal the text, and then the head has read the text's tokens. So its
        predictions over the text itself are enough.
        """
        rows = torch.arange(start - 1, end - 2, device=ids.device)[None]
        outputs = self._outputs(features, ids, rows, self.depth)
        return torch.stack([self.head.scores(each)[0].argmax(-1) for each in outputs], dim=1)
