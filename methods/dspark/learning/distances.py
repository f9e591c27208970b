"""Cross-entropy and total variation with a frozen LM head, computed in chunks: the scores of few rows are in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specbench.training import autocast_weight, score_chunks


class Distances(NamedTuple):
    """Distances of M draft distributions Q from the target's P, both at temperature 1.

    Attributes:
        loss: Σᵢ (labelledᵢ · −log Qᵢ(labelᵢ) + sharesᵢ · 2 · TV(Pᵢ, Qᵢ)), the L1 distance being twice TV.
        accepted: [M] probability Σᵥ min(P(v), Q(v)) = 1 − TV that a token sampled from Q is accepted.
        agrees: bool [M] whether P and Q have the same best token, among those that can be drafted.
    """

    loss: Tensor
    accepted: Tensor
    agrees: Tensor


def distances(
    outputs: Tensor,
    latents: Tensor,
    markov: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    teacher: Tensor,
    rows: Tensor,
    labels: Tensor,
    labelled: Tensor,
    shares: Tensor,
) -> Distances:
    """Compare Q = softmax(outputs · weightᵀ + bias + latents · markovᵀ) over the tokens that can be drafted.

    The gradient with respect to a row's scores is Q − 1[label] for the cross-entropy and Q ∘ (s − Σᵥ Q(v) s(v)) with
    s = sign(Q − P) for the L1 distance. Each chunk keeps only the products of this gradient with its weights.

    Args:
        outputs: [M, H] outputs of the head's last norm.
        latents: [M, r] what the Markov head's second matrix multiplies; r may be 0.
        markov: [V, r] this matrix, which is trained.
        weight, bias: [V, H], [V] of the frozen LM head's rows that can be drafted.
        teacher: [N, V] the target's probabilities of these tokens; they sum to 1 over the whole vocabulary.
        rows: int64 [M] which of the N rows each output is compared with.
        labels: int64 [M] the text's tokens as indices among those that can be drafted.
        labelled, shares: [M] weights of the two sums.
    """
    found = _Distances.apply(outputs, latents, markov, weight, bias, teacher, rows, labels, labelled, shares)
    return Distances(*found)


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        latents: Tensor,
        markov: Tensor,
        weight: Tensor,
        bias: Any,
        teacher: Tensor,
        rows: Tensor,
        labels: Tensor,
        labelled: Tensor,
        shares: Tensor,
    ) -> Any:
        by_outputs, by_latents, by_markov = (torch.zeros_like(each) for each in (outputs, latents, markov))
        accepted = torch.empty(len(outputs), dtype=torch.float32, device=outputs.device)
        likely = torch.empty_like(accepted)
        agrees = torch.empty(len(outputs), dtype=torch.bool, device=outputs.device)
        weight = autocast_weight(weight)
        for here in score_chunks(len(outputs), weight):
            latent = latents[here].to(markov.dtype)
            scores = functional.linear(outputs[here].to(weight.dtype), weight, bias).float()
            scores += functional.linear(latent, markov).float()
            target, label = teacher[rows[here]].float(), labels[here, None]
            agrees[here] = scores.argmax(-1) == target.argmax(-1)
            logp = scores.log_softmax(-1)
            likely[here] = logp.gather(-1, label)[:, 0]
            draft = logp.exp_()
            accepted[here] = torch.minimum(draft, target).sum(-1)
            side = (draft - target).sign_()
            slope = (side - (draft * side).sum(-1, keepdim=True)).mul_(draft).mul_(shares[here, None])
            slope += draft * labelled[here, None]
            slope.scatter_add_(-1, label, -labelled[here, None])
            by_outputs[here] = (slope.to(weight.dtype) @ weight).to(outputs.dtype)
            slope = slope.to(markov.dtype)
            by_latents[here] = (slope @ markov).to(latents.dtype)
            by_markov += (slope.T @ latent).to(markov.dtype)
        ctx.save_for_backward(by_outputs, by_latents, by_markov)
        ctx.mark_non_differentiable(accepted, agrees)
        loss = (shares * 2 * (1 - accepted)).sum() - (labelled * likely).sum()
        return loss, accepted, agrees

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *(gradients[0] * each for each in ctx.saved_tensors), *[None] * 7
