"""Forward KL of an LM head's scores, computed in chunks so that the scores of all rows are never in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from specbench.training.objectives.scored_rows import autocast_weight, score_chunks


def scored_kl(
    states: Tensor, weight: Tensor, bias: Tensor | None, teacher: Tensor, rows: Tensor, shares: Tensor
) -> Any:
    """Σ shareᵢ · KL(Pᵢ || Qᵢ), P the target's distribution and Q the draft's, both at temperature 1.

    KL(P || Q) = Σᵥ P(v) · (log P(v) − log Q(v)), Q = softmax(states · weightᵀ + bias). Its gradient with respect to
    the scores is Q − P. Each chunk keeps only this gradient's products with the LM head's weights and, unless these are
    frozen, with its states.

    Args:
        states: [M, H] outputs of the head's last norm.
        weight, bias: [V, H], [V] of the LM head, or of the rows that can be drafted; the bias gets no gradient.
        teacher: [N, V] the target's log-probabilities over the same tokens.
        rows: int64 [M] which of the N rows each state is compared with.
        shares: [M] weights of the sum.

    Returns:
        (loss, divergence [M], agrees bool [M]): the sum, each row's KL, and whether both have the same best token.
    """
    return _ScoredKL.apply(states, weight, bias, teacher, rows, shares)


class _ScoredKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Any, teacher: Tensor, rows: Tensor, shares: Tensor
    ) -> Any:
        by_states = torch.empty_like(states)
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        divergence = torch.empty(len(states), dtype=torch.float32, device=states.device)
        agrees = torch.empty(len(states), dtype=torch.bool, device=states.device)
        weight = autocast_weight(weight)
        for here in score_chunks(len(states), weight):
            some = states[here].to(weight.dtype)
            scores = linear(some, weight, bias).float()
            target = teacher[rows[here]].float()
            agrees[here] = scores.argmax(-1) == target.argmax(-1)
            draft = scores.log_softmax(-1)
            likely = target.exp()
            divergence[here] = (likely * (target - draft)).sum(-1)
            slope = draft.exp_().sub_(likely).mul_(shares[here, None]).to(weight.dtype)
            by_states[here] = (slope @ weight).to(states.dtype)
            if by_weight is not None:
                by_weight += slope.T @ some
        ctx.save_for_backward(by_states, by_weight)
        ctx.mark_non_differentiable(divergence, agrees)
        return (divergence * shares).sum(), divergence, agrees

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        by_states, by_weight = ctx.saved_tensors
        return gradients[0] * by_states, None if by_weight is None else gradients[0] * by_weight, *[None] * 4
