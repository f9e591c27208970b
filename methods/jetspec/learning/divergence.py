"""Forward KL with a frozen LM head, computed in chunks so that the scores of all rows are never in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.training import autocast_weight, score_chunks


def forward_kl(
    states: Tensor, weight: Tensor, bias: Tensor | None, teacher: Tensor, rows: Tensor, shares: Tensor
) -> Any:
    """Σ shareᵢ · KL(Pᵢ || Qᵢ), P the target's distribution and Q the draft's, both at temperature 1.

    KL(P || Q) = Σᵥ P(v) · (log P(v) − log Q(v)), Q = softmax(states · weightᵀ + bias). Its gradient with respect to
    the scores is Q − P. The LM head is frozen, so each chunk keeps only the product of this gradient with its weights.

    Args:
        states: [M, H] outputs of the head's last norm.
        weight, bias: [V, H], [V] of the LM head, or of the rows that can be drafted.
        teacher: [N, V] the target's log-probabilities over the same tokens.
        rows: int64 [M] which of the N rows each state is compared with.
        shares: [M] weights of the sum.

    Returns:
        (loss, divergence [M], agrees bool [M]): the sum, each row's KL, and whether both have the same best token.
    """
    return _ForwardKL.apply(states, weight, bias, teacher, rows, shares)


class _ForwardKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Any, teacher: Tensor, rows: Tensor, shares: Tensor
    ) -> Any:
        gradient = torch.empty_like(states)
        divergence = torch.empty(len(states), dtype=torch.float32, device=states.device)
        agrees = torch.empty(len(states), dtype=torch.bool, device=states.device)
        weight = autocast_weight(weight)
        for here in score_chunks(len(states), weight):
            scores = torch.nn.functional.linear(states[here].to(weight.dtype), weight, bias).float()
            target = teacher[rows[here]].float()
            agrees[here] = scores.argmax(-1) == target.argmax(-1)
            draft = scores.log_softmax(-1)
            likely = target.exp()
            divergence[here] = (likely * (target - draft)).sum(-1)
            slope = draft.exp_().sub_(likely).mul_(shares[here, None])
            gradient[here] = (slope.to(weight.dtype) @ weight).to(states.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(divergence, agrees)
        return (divergence * shares).sum(), divergence, agrees

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradients[0] * gradient, None, None, None, None, None
