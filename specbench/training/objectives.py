"""Which rows of a packed batch a method learns from, and what each weighs.

Notation: pθ(· | x) is the model's next-token distribution behind x, sg stops gradients, kⱼ and lⱼ are the noisy and the
clean tokens of block j, x is the prompt, and sⱼₜ the shares of :func:`shares`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specbench.training.losses import Pairs, Targets
from specbench.training.packing import CLEAN, NOISY, Packed

Norm = Literal["tokens", "blocks", "released"]


def progressive_consistency(packed: Packed, norm: Norm = "tokens") -> Pairs:
    """Jacobi Forcing: from the first wrong token of a noisy block on, say what the clean block says.

    L = Σⱼ Σ_{t ≥ fⱼ} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, k_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The row of a block's last token counts: it foresees the next block's first. The answer's last row does not, there
    being no next token; the released code learns from it and from all behind it unless they are pads.

    Args:
        packed: of one noisy stream, seen through one window.
        norm: see :func:`shares`.
    """
    kept = _behind_divergence(packed) & (packed.following >= 0)
    return _pairs(packed, kept, norm)


def global_consistency(packed: Packed, norm: Norm = "tokens", last: bool = False) -> Pairs:
    """CLLM, Eq. 4: from any state of a block, say what its fixed point says.

    L = Σⱼ Σ_{t ≥ fⱼ − 1} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, l_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The first row is the one that foresees the first wrong token, as released: its divergence is 0, its share is not.

    Args:
        packed: of one noisy stream, seen through windows of one block.
        norm: see :func:`shares`.
        last: include the row that foresees the next block's first token; the code's sequences end with the block.
    """
    behind = _behind_divergence(packed)
    same = _same_block(packed)
    ahead = torch.cat([behind[:, 1:] & same[:, 1:], torch.zeros_like(behind[:, :1])], dim=1)
    kept = (behind | ahead) & (packed.following >= 0)
    if not last:
        kept &= torch.cat([same[:, 1:], torch.zeros_like(same[:, :1])], dim=1)
    return _pairs(packed, kept, norm)


def local_consistency(packed: Packed, norm: Norm = "tokens", last: bool = False) -> Pairs:
    """CLLM, Eq. 5: from a state kⱼ of a block, say what the next state k′ⱼ says. The paper's only; no code has it.

    L = Σⱼ Σ_{t ≥ fⱼ − 1} sⱼₜ KL(sg pθ(· | x, l_<j, k′ⱼ[..t]) ‖ pθ(· | x, l_<j, kⱼ[..t])),
    fⱼ = min {t : kⱼ[t] ≠ k′ⱼ[t]}

    Args:
        packed: of two noisy streams, a state and the next, seen through windows of one block.
        norm: see :func:`shares`.
        last: as of :func:`global_consistency`.
    """
    return global_consistency(packed, norm, last)


def autoregressive(packed: Packed, prompt: bool = False) -> Targets:
    """L = −1/M Σ log pθ(token | text before it), over the answer's tokens, or the prompt's too.

    Args:
        packed: of any streams; the clean one is an ordinary causal text.
        prompt: include the prompt's own tokens, as both releases do.
    """
    follows = packed.following
    learns = (packed.stream <= CLEAN) & (follows >= 0)
    if not prompt:
        learns &= packed.block.gather(1, follows.clamp(min=0)) >= 0
    rows = learns.flatten().nonzero()[:, 0]
    tokens = packed.ids.gather(1, follows.clamp(min=0)).flatten()[rows]
    return Targets(rows, tokens, torch.full(rows.shape, 1 / max(1, len(rows)), device=rows.device))


def shares(packed: Packed, kept: Tensor, norm: Norm) -> Tensor:
    """What each kept row weighs: float32 [B, S], 0 for others.

    Args:
        packed: the batch.
        kept: bool [B, S].
        norm: ``tokens`` is the mean over the batch's kept rows; ``blocks`` the mean over all blocks of the mean over
            the block's kept rows, as the post averages over blocks; ``released`` the mean over samples of the mean over
            the sample's kept rows, divided once more by its number of blocks, as the Jacobi Forcing code does.
    """
    weight = kept.float()
    if norm == "tokens":
        return weight / weight.sum().clamp(min=1)
    answers = packed.stream == CLEAN
    most = int(packed.block.max()) + 1
    block = (packed.sample * most + packed.block)[answers].unique()
    if norm == "blocks":
        return weight / _total(weight, packed.sample * most + packed.block, answers | kept) / len(block)
    blocks = torch.bincount(block // most)  # of each sample
    texts = int((blocks > 0).sum())
    return weight / _total(weight, packed.sample, answers | kept) / blocks[packed.sample.clamp(min=0)] / texts


def _total(weight: Tensor, group: Tensor, members: Tensor) -> Tensor:
    """The sum of each element's group, at least 1; groups of those that are no member do not matter."""
    group = group.masked_fill(~members, 0)
    sums = weight.new_zeros(int(group.max()) + 1).index_add_(0, group[members], weight[members])
    return sums.clamp(min=1)[group]


def _pairs(packed: Packed, kept: Tensor, norm: Norm) -> Pairs:
    students = kept.flatten().nonzero()[:, 0]
    start = torch.arange(len(kept), device=kept.device)[:, None] * kept.shape[1]
    return Pairs(students, (start + packed.teacher).flatten()[students], shares(packed, kept, norm).flatten()[students])


def _same_block(packed: Packed) -> Tensor:
    """bool [B, S]: whether a row continues the block of the row before it, in the same stream."""
    same = torch.ones_like(packed.ids, dtype=torch.bool)
    same[:, 0] = False
    for what in (packed.sample, packed.stream, packed.block):
        same[:, 1:] &= what[:, 1:] == what[:, :-1]
    return same


def _behind_divergence(packed: Packed) -> Tensor:
    """bool [B, S]: rows of the first noisy stream from their block's first token on that is not its teacher's."""
    learns = packed.stream == NOISY
    differs = learns & (packed.ids != packed.ids.gather(1, packed.teacher.clamp(min=0)))
    columns = torch.arange(packed.ids.shape[1], device=packed.ids.device).expand_as(packed.ids)
    first = columns.masked_fill(_same_block(packed), 0).cummax(1).values
    seen = differs.cumsum(1)
    return learns & (seen > seen.gather(1, first) - differs.gather(1, first).long())
