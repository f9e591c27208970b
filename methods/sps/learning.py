"""The loss of a draft model: compare its distributions with the target's, on the target's own answers.

L = a · mean KL(p_target ‖ p_draft) + b · mean −log p_draft(token), both over the answers' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from specbench.training import Text, cross_entropy, forward_kl

# Rows whose scores are in memory at once: with a large vocabulary, the scores of all rows would not fit.
_AT_ONCE = 256


class _Frozen:
    """The target's decoder and LM head. Not a module, so that its weights are not trained, saved or moved."""

    def __init__(self, model: Any) -> None:
        self.decoder = model.get_decoder()
        self.scorer = model.get_output_embeddings()


class Lesson(nn.Module):
    """The draft model with its loss.

    ``draft``: in float32, on the target's device; ``kl``, ``ce``: weights of divergence and cross-entropy.
    """

    def __init__(self, draft: Any, target: Any, *, kl: float, ce: float) -> None:
        super().__init__()
        self.draft = draft
        self._target = _Frozen(target)
        self._kl, self._ce = kl, ce

    def forward(self, ids: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        ``ids``: int64 [B, S] texts, padded at their ends; ``starts``, ``ends``: int64 [B] first position of each
        answer, and tokens of each text. Returns ``loss``, ``kl``, ``ce``; ``agrees``, the share of rows whose best
        token is the target's.
        """
        column = torch.arange(ids.shape[1], device=ids.device)
        learns = (column >= starts[:, None] - 1) & (column < ends[:, None] - 1)
        tokens = ids.roll(-1, 1)[learns]
        with torch.no_grad():
            taught = self._target.decoder(input_ids=ids, use_cache=False).last_hidden_state[learns]
        states = self.draft.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[learns]
        parts = [
            checkpoint(self._part, states[at], taught[at], tokens[at], use_reentrant=False)
            for at in torch.arange(len(tokens), device=ids.device).split(_AT_ONCE)
        ]
        kl, ce, agrees = (torch.stack(each).sum() / len(tokens) for each in zip(*parts, strict=True))
        return {"loss": self._kl * kl + self._ce * ce, "kl": kl, "ce": ce, "agrees": agrees}

    def _part(self, states: Tensor, taught: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over some rows."""
        with torch.no_grad():
            teacher = self._target.scorer(taught.to(self._target.scorer.weight.dtype))
        logits = self.draft.get_output_embeddings()(states)
        words = min(logits.shape[-1], teacher.shape[-1])  # models of one family differ by padding
        logits, teacher = logits[:, :words], teacher[:, :words]
        agrees = (logits.argmax(-1) == teacher.argmax(-1)).float()
        return forward_kl(logits, teacher).sum(), cross_entropy(logits, tokens).sum(), agrees.sum()


@dataclass(frozen=True)
class HeldOut:
    """The cost of held-out texts with ``sps``.

    ``tokens``: all tokens after the first of each answer; ``rounds``: steps that emit them; ``right``: share of the
    tokens that are the draft model's best given the text before them.
    """

    tokens: int
    rounds: int
    right: float

    @property
    def tpf(self) -> float:
        """Tokens per forward of the target."""
        return self.tokens / max(1, self.rounds)


@torch.no_grad()
def held_out(draft: Any, texts: Sequence[Text], draft_tokens: int) -> HeldOut:
    """Compute the cost of decoding these texts greedily with ``sps``.

    A draft counts only if it equals the text, so the draft model's predictions over the text decide every round.
    """
    training, tokens, rounds, hits = draft.training, 0, 0, 0
    draft.eval()
    try:
        for text in texts:
            ids = torch.tensor([[*text.prompt, *text.answer]], device=draft.device)
            rows = slice(len(text.prompt), ids.shape[1] - 1)
            states = draft.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, rows]
            scorer = draft.get_output_embeddings()
            best = (
                [scorer(part.to(scorer.weight.dtype)).argmax(-1) for part in states.split(_AT_ONCE)]
                if len(states)
                else []
            )
            right = (torch.cat(best) == ids[0, len(text.prompt) + 1 :]).tolist() if best else []
            tokens += len(right)
            hits += sum(right)
            rounds += _rounds(right, draft_tokens)
    finally:
        draft.train(training)
    return HeldOut(tokens, rounds, hits / max(1, tokens))


def _rounds(right: Sequence[bool], draft_tokens: int) -> int:
    """Number of steps for an answer; ``right``: for each token after the first, whether it is drafted right."""
    at = rounds = 0
    while at < len(right):
        accepted = 0
        while accepted < draft_tokens and at + accepted < len(right) and right[at + accepted]:
            accepted += 1
        at += accepted + 1
        rounds += 1
    return rounds
