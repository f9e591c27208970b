"""Verify randomly sampled drafts as a block (block verification, Sun et al. 2024, arXiv:2403.10444).

If the distribution q that a draft was sampled from is known, the target does not have to sample the same token: the
draft is accepted with some probability, and after a rejection the next token is sampled from the part of the target's
distribution p that q does not cover. The emitted text follows the target's distribution, but it is not the text that
plain decoding emits with the same seed. In token-by-token verification (Leviathan et al. 2023) a draft counts only if
every draft before it was accepted on its own. In block verification a draft that is more likely under p than under q
makes up for an earlier one, and no rule accepts more of a block on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding import BadTree, Proposal, StepResult, TokenTree
from specbench.engine.sampler import Stream, drawn, uniforms

_ROUNDING = 1e-3  # rounding error of a float32 sum of 1 over a vocabulary


class Verdict(NamedTuple):
    """Result of a block: how many drafts were accepted (τ), and the token after them (Y)."""

    accepted: int
    token: int


def accept_block(p: Tensor, q: Tensor, tokens: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Decide how many drafts of a block are accepted, and the token after them: Algorithm 2 of the paper.

    With X_1 … X_γ the drafts, p(·|X^i) the target's distribution after the first i of them (the paper's M_b), q(·|X^i)
    the distribution that X_{i+1} was sampled from (M_s), and p_0 = 1:

        p_i = min(p_{i−1} · p(X_i|X^{i−1}) / q(X_i|X^{i−1}), 1)
        S_i = Σ_x max(p_i · p(x|X^i) − q(x|X^i), 0)
        h_i = S_i / (S_i + 1 − p_i) for i < γ, and h_γ = p_γ
        τ   = the largest i with η_i ≤ h_i, 0 if there is none
        Y   ~ max(p_τ · p(·|X^τ) − q(·|X^τ), 0) / S_τ for τ < γ, and p(·|X^γ) for τ = γ

    A draft is kept if it or any later draft passes. If q is set to zeros after the last draft, where there is no
    further draft, the two cases of h and of Y coincide: S_γ = p_γ.

    A draft with q(X_i) = 0, which cannot have been sampled, and all drafts after it are never accepted; a row of zeros
    in q ends the block before it.

    Args:
        p: float [..., γ + 1, V].
        q: float [..., γ, V]; rows may sum to less than 1.
        tokens: int64 [..., γ].
        numbers: float64 [..., γ + 1], uniform in (0, 1): η_1 … η_γ, then the number that samples Y.

    Returns:
        (τ, Y): int64 [...] each.
    """
    h, left = chances(p, q, tokens)
    places = torch.arange(h.shape[-1], device=p.device)
    passed = torch.cat([torch.ones_like(h[..., :1], dtype=torch.bool), numbers[..., :-1] <= h[..., 1:]], dim=-1)
    accepted = (passed * places).amax(-1)
    residual, target = _row(left, accepted), _row(p, accepted)
    # The residual is 0 only where rounding alone ended a block: p and q are the same distribution there.
    residual = torch.where(residual.amax(-1, keepdim=True) > 0, residual, target)
    return accepted, drawn(residual, numbers[..., -1])


def chances(p: Tensor, q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Compute acceptance probabilities and residual weights of a block.

    Returns (h, left): ``h`` float64 [..., γ + 1], h_i at index i ≥ 1, meaningless at index 0; ``left``
    [..., γ + 1, V], at index i the weights for sampling Y after i accepted drafts, with sum S_i.
    """
    drawn_q, its_p = (rows.gather(-1, tokens[..., None])[..., 0].double() for rows in (q, p[..., :-1, :]))
    step = torch.where(drawn_q > 0, its_p.log() - drawn_q.log(), -torch.inf)
    # log p_i is a running sum that is clamped at 0: the plain sum minus its maximum so far, if that is above 0.
    walk = torch.cat([torch.zeros_like(p[..., 0, :1], dtype=torch.float64), step.cumsum(-1)], dim=-1)
    reach = (walk - walk.cummax(-1).values).exp()
    left = reach[..., None].to(p.dtype) * p
    left[..., :-1, :].sub_(q).clamp_(min=0)
    surplus = left.sum(-1, dtype=torch.float64)
    # If both parts are 0, p equals q and the block cannot end here: whatever h is, some later h is 1.
    whole = surplus + (1 - reach)
    h = torch.where(whole > 0, surplus, 1.0) / torch.where(whole > 0, whole, 1.0)
    return h, left


def _row(rows: Tensor, at: Tensor) -> Tensor:
    """Select row ``at`` [...] of each block [..., n, V]; returns [..., V]."""
    every = rows.reshape(-1, *rows.shape[-2:])
    return every[torch.arange(len(every), device=at.device), at.flatten()].view(*at.shape, rows.shape[-1])


@torch.inference_mode()
def verify(
    trees: Mapping[int, TokenTree], probabilities: Mapping[int, Tensor], starts: Mapping[int, int], seed: int
) -> dict[int, Verdict]:
    """Verify the chains of slots whose trees have a proposal, with a single read of the device.

    ``probabilities``: the target's distribution after each row, float32 [rows, V]; ``starts``: position of each root.
    """
    alike: dict[int, list[int]] = defaultdict(list)
    for slot, tree in trees.items():
        alike[len(tree)].append(slot)
    found = []
    for rows, slots in alike.items():
        p = _stacked([probabilities[slot] for slot in slots])
        proposals = [_checked(trees[slot].proposal, p) for slot in slots]
        q = _stacked([_over_all(proposal, p.shape[-1]) for proposal in proposals])
        wrong = torch.stack([_is_invalid(proposal, p.shape[-1]) for proposal in proposals])
        tokens = torch.tensor([trees[slot].tokens[1:] for slot in slots], dtype=torch.int64, device="cpu")
        numbers = uniforms(seed, Stream.VERIFY, [starts[slot] for slot in slots], rows)
        found.append(torch.stack((*accept_block(p, q, tokens.to(p.device), numbers.to(p.device)), wrong.long())))
    accepted, bonus, faults = torch.cat(found, dim=1).tolist()
    if any(faults):
        raise BadTree("its proposal has negative or NaN values, rows with a sum above 1, or ids outside the vocabulary")
    order = [slot for slots in alike.values() for slot in slots]
    return {slot: Verdict(*verdict) for slot, *verdict in zip(order, accepted, bonus, strict=True)}


def _stacked(blocks: Sequence[Tensor]) -> Tensor:
    """Stack blocks to [S, rows, V]; a single block is not copied."""
    return blocks[0][None] if len(blocks) == 1 else torch.stack(list(blocks))


def _checked(proposal: Proposal | None, p: Tensor) -> Proposal:
    """Check types, shapes and devices of a proposal's tensors; ``p``: the target's probabilities [S, rows, V]."""
    q, ids = (proposal.probabilities, proposal.ids) if proposal else (None, None)
    if proposal is None or not isinstance(q, Tensor) or q.dim() != 2 or not q.is_floating_point():
        raise BadTree("its proposal has no matrix of probabilities")
    if q.device != p.device or q.shape[-1] > p.shape[-1]:
        raise BadTree(
            f"its proposal has {q.shape[-1]} tokens on {q.device}, but the target has {p.shape[-1]} on {p.device}"
        )
    if ids is None:
        return proposal
    if (
        not isinstance(ids, Tensor)
        or ids.dtype is not torch.int64
        or ids.shape != q.shape[-1:]
        or ids.device != p.device
    ):
        raise BadTree(f"its proposal has {q.shape[-1]} columns, so it needs {q.shape[-1]} int64 ids on {p.device}")
    return proposal


def _is_invalid(proposal: Proposal, vocab: int) -> Tensor:
    """bool [] on the device: whether some row is not a distribution or some id is not in the vocabulary."""
    q, ids = proposal.probabilities, proposal.ids
    wrong = ~((q.sum(-1) <= 1 + _ROUNDING) & (q.amin(-1) >= 0)).all()
    return wrong if ids is None else wrong | ((ids < 0) | (ids >= vocab)).any()


def _over_all(proposal: Proposal, vocab: int) -> Tensor:
    """A proposal's probabilities [rows - 1, V]; 0 for tokens without a column."""
    q = proposal.probabilities
    columns = q.shape[-1]
    if proposal.ids is None:
        return torch.nn.functional.pad(q, (0, vocab - columns)) if columns < vocab else q
    return q.new_zeros(len(q), vocab).index_copy_(1, proposal.ids.clamp(0, vocab - 1), q)


class DrawnDrafts:
    """Sample drafts one after the other, for all sequences of a target step together.

    Their random numbers differ for each block and are independent of the target's noise, as block verification
    requires. ``starts`` maps a slot to the position of its block's root; sampled tokens are less than ``vocab``.
    """

    def __init__(self, starts: Mapping[int, int], most: int, vocab: int, seed: int, device: torch.device) -> None:
        self._row = {slot: row for row, slot in enumerate(starts)}
        self._vocab, self._place = vocab, 0
        self._numbers = uniforms(seed, Stream.DRAFT, list(starts.values()), most).to(device)
        self._drawn_from: dict[int, list[Tensor]] = {slot: [] for slot in starts}

    @torch.inference_mode()
    def draw(self, results: Mapping[int, StepResult]) -> dict[int, int]:
        """Sample the next draft of some slots from the probabilities after the last row of each."""
        found = {slot: result.probabilities for slot, result in results.items()}
        slots, q = list(found), torch.stack([rows[-1, : self._vocab] for rows in found.values() if rows is not None])
        # A draft model with a larger vocabulary may give probability to tokens that the target lacks.
        q = q / q.sum(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).tiny)
        tokens = drawn(q, self._numbers[self._rows(slots), self._place]).tolist()
        self._place += 1
        for slot, row in zip(slots, q, strict=True):
            self._drawn_from[slot].append(row)
        return dict(zip(slots, tokens, strict=True))

    def proposal(self, slot: int) -> Proposal:
        """The distributions that a slot's drafts, at least one, were sampled from."""
        return Proposal(torch.stack(self._drawn_from[slot]))

    def _rows(self, slots: Collection[int]) -> Sequence[int] | slice:
        rows = [self._row[slot] for slot in slots]
        return slice(None) if rows == list(range(len(self._row))) else rows
