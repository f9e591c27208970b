"""Consistency and autoregressive losses on rows of a packed batch, and the objectives that choose the rows.

Notation: pθ(· | x) is the model's next-token distribution after x, sg stops gradients, kⱼ and lⱼ are the noisy and the
clean tokens of block j, x is the prompt, and sⱼₜ the weights of :func:`shares`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from specbench.training.objectives.distances import Measure, forward_kl
from specbench.training.objectives.packing import CLEAN, NOISY, Packed


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows whose distributions should match: Σᵢ shareᵢ · D(sg p(teacherᵢ), p(studentᵢ)).

    D is a distance of :mod:`.distances`.

    Attributes:
        students, teachers: int64 [M] indices of the B × S rows of a batch.
        shares: [M] weights.
    """

    students: Tensor
    teachers: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Targets:
    """Rows with the tokens that they should predict: Σᵢ shareᵢ · CE(tokenᵢ, p(rowᵢ)).

    Attributes:
        rows, tokens: int64 [M].
        shares: [M] weights.
    """

    rows: Tensor
    tokens: Tensor
    shares: Tensor


def cross_entropy(scores: Tensor, tokens: Tensor, smoothing: float = 0.0) -> Tensor:
    """−(1 − ε) log P(token) − ε / V · Σᵥ log P(v) of each row.

    Args:
        scores: [M, V].
        tokens: int64 [M].
        smoothing: ε; 0.1 in the released CLLM trainer, 0 in its paper.
    """
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return functional.cross_entropy(exact, tokens, reduction="none", label_smoothing=smoothing)


@dataclass(frozen=True)
class Losses:
    """Losses of each pair and each target of a batch.

    Attributes:
        divergence: float32 [pairs] the distance between student and teacher.
        agrees: bool [pairs] whether both rows have the same best token.
        surprise: float32 [targets] :func:`cross_entropy`, or the distance from ``labels``.
        right: bool [targets] whether the token is the row's best.
    """

    divergence: Tensor
    agrees: Tensor
    surprise: Tensor
    right: Tensor


def evaluate_losses(
    scores: Callable[[Tensor], Tensor],
    states: Tensor,
    pairs: Pairs,
    targets: Targets,
    smoothing: float = 0.0,
    at_once: int | None = None,
    distance: Measure = forward_kl,
    labels: Callable[[Tensor], Tensor] | None = None,
) -> Losses:
    """Compute the losses; a row that is both a teacher and a target goes through the LM head once.

    Args:
        scores: the LM head, [M, H] -> [M, V].
        states: [B × S, H].
        at_once: rows whose scores are kept for the backward pass; more rows go in parts, which it recomputes.
        labels: int64 [M] rows -> scores [M, V] that ``targets`` learn instead of their tokens.
    """
    rows, place = torch.cat([targets.rows, pairs.teachers]).unique(return_inverse=True)
    asked, teaching = place.split([len(targets.rows), len(pairs.teachers)])
    step = max(1, at_once // 2 if at_once else len(rows))  # each teacher row also needs the scores of its student

    def part(states: Tensor, start: int, target: Tensor, pair: Tensor) -> tuple[Tensor, ...]:
        computed = scores(states[rows[start : start + step]])
        answered, teacher = computed[asked[target] - start], computed[teaching[pair] - start].detach()
        guessed, tokens = scores(states[pairs.students[pair]]), targets.tokens[target]
        return (
            distance(guessed, teacher),
            guessed.argmax(-1) == teacher.argmax(-1),
            cross_entropy(answered, tokens, smoothing)
            if labels is None
            else distance(answered, labels(targets.rows[target])),
            answered.argmax(-1) == tokens,
        )

    starts = range(0, max(1, len(rows)), step)
    chosen = [[(x // step == start // step).nonzero()[:, 0] for x in (asked, teaching)] for start in starts]
    if len(starts) == 1:
        return Losses(*part(states, 0, *chosen[0]))
    parts = [checkpoint(part, states, at, *of, use_reentrant=False) for at, of in zip(starts, chosen, strict=True)]
    target, pair = (torch.cat(each).argsort() for each in zip(*chosen, strict=True))  # back to the original order
    divergence, agrees, surprise, right = map(torch.cat, zip(*parts, strict=True))
    return Losses(divergence[pair], agrees[pair], surprise[target], right[target])


def mean_of_rows(values: Tensor) -> Tensor:
    """Return the mean as a detached float32 scalar; 0 of an empty tensor."""
    return values.detach().float().sum() / max(1, values.numel())


Norm = Literal["tokens", "blocks", "released"]


def progressive_consistency(packed: Packed, norm: Norm = "tokens") -> Pairs:
    """Pair rows for Jacobi Forcing: from a noisy block's first wrong token on, match the clean block's distributions.

    L = Σⱼ Σ_{t ≥ fⱼ} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, k_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The row of a block's last token is included: it predicts the first token of the next block. The answer's last row is
    not, since there is no next token; the released code includes it and all rows after it that are not padding.

    Args:
        packed: batch with one noisy stream and one window.
    """
    kept = _from_divergence(packed) & (packed.following >= 0)
    return _pairs(packed, kept, norm)


def global_consistency(packed: Packed, norm: Norm = "tokens", last: bool = False) -> Pairs:
    """Pair rows for CLLM, Eq. 4: any state of a block should match the distributions of its fixed point.

    L = Σⱼ Σ_{t ≥ fⱼ − 1} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, l_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The first row is the one that predicts the first wrong token, as in the released code: its divergence is 0, but it
    counts in the mean.

    Args:
        packed: batch with one noisy stream and windows of one block.
        last: include the row that predicts the next block's first token; sequences of the released code end with the
            block.
    """
    later = _from_divergence(packed)
    same = _same_block(packed)
    ahead = torch.cat([later[:, 1:] & same[:, 1:], torch.zeros_like(later[:, :1])], dim=1)
    kept = (later | ahead) & (packed.following >= 0)
    if not last:
        kept &= torch.cat([same[:, 1:], torch.zeros_like(same[:, :1])], dim=1)
    return _pairs(packed, kept, norm)


def local_consistency(packed: Packed, norm: Norm = "tokens", last: bool = False) -> Pairs:
    """Pair rows for CLLM, Eq. 5: a state kⱼ of a block should match the next state k′ⱼ. Not in the released code.

    L = Σⱼ Σ_{t ≥ fⱼ − 1} sⱼₜ KL(sg pθ(· | x, l_<j, k′ⱼ[..t]) ‖ pθ(· | x, l_<j, kⱼ[..t])),
    fⱼ = min {t : kⱼ[t] ≠ k′ⱼ[t]}
    """
    return global_consistency(packed, norm, last)


def autoregressive(packed: Packed, prompt: bool = False) -> Targets:
    """Return the targets of L = −1/M Σ log pθ(token | text before it) over the answer's tokens.

    Args:
        prompt: include the prompt's tokens, as the released code of CLLM and Jacobi Forcing does.
    """
    follows = packed.following
    learns = (packed.stream <= CLEAN) & (follows >= 0)
    if not prompt:
        learns &= packed.block.gather(1, follows.clamp(min=0)) >= 0
    rows = learns.flatten().nonzero()[:, 0]
    tokens = packed.ids.gather(1, follows.clamp(min=0)).flatten()[rows]
    return Targets(rows, tokens, torch.full(rows.shape, 1 / max(1, len(rows)), device=rows.device))


def shares(packed: Packed, kept: Tensor, norm: Norm) -> Tensor:
    """Return the weight of each kept row: float32 [B, S], 0 for other rows.

    Args:
        kept: bool [B, S].
        norm: ``tokens`` is the mean over the batch's kept rows; ``blocks`` the mean over all blocks of the mean over
            the block's kept rows, as in the blog post; ``released`` the mean over samples of the mean over the sample's
            kept rows, divided once more by its number of blocks, as in the Jacobi Forcing code.
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
    """Return for each element the sum over the members of its group, at least 1; arbitrary for non-members."""
    group = group.masked_fill(~members, 0)
    sums = weight.new_zeros(int(group.max()) + 1).index_add_(0, group[members], weight[members])
    return sums.clamp(min=1)[group]


def _pairs(packed: Packed, kept: Tensor, norm: Norm) -> Pairs:
    students = kept.flatten().nonzero()[:, 0]
    start = torch.arange(len(kept), device=kept.device)[:, None] * kept.shape[1]
    return Pairs(students, (start + packed.teacher).flatten()[students], shares(packed, kept, norm).flatten()[students])


def _same_block(packed: Packed) -> Tensor:
    """Return bool [B, S]: whether a row belongs to the same sample, stream and block as the row before it."""
    same = torch.ones_like(packed.ids, dtype=torch.bool)
    same[:, 0] = False
    for what in (packed.sample, packed.stream, packed.block):
        same[:, 1:] &= what[:, 1:] == what[:, :-1]
    return same


def _from_divergence(packed: Packed) -> Tensor:
    """Return bool [B, S]: rows of the first noisy stream from the first token of their block that is wrong."""
    learns = packed.stream == NOISY
    differs = learns & (packed.ids != packed.ids.gather(1, packed.teacher.clamp(min=0)))
    columns = torch.arange(packed.ids.shape[1], device=packed.ids.device).expand_as(packed.ids)
    first = columns.masked_fill(_same_block(packed), 0).cummax(1).values
    seen = differs.cumsum(1)
    return learns & (seen > seen.gather(1, first) - differs.gather(1, first).long())
