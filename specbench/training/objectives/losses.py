"""Consistency and autoregressive, of chosen rows of a packed batch; each method's objective chooses them.

Notation: pθ(· | x) is the model's next-token distribution behind x, sg stops gradients, kⱼ and lⱼ are the noisy and the
clean tokens of block j, x is the prompt, and sⱼₜ the shares of :func:`shares`.
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
    """Rows that learn from rows: Σᵢ shareᵢ · D(sg p(teacherᵢ), p(studentᵢ)), D as in :mod:`.distances`.

    Attributes:
        students, teachers: int64 [M] into the B × S rows of a batch.
        shares: [M].
    """

    students: Tensor
    teachers: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Targets:
    """Rows that learn tokens: Σᵢ shareᵢ · CE(tokenᵢ, p(rowᵢ)).

    Attributes:
        rows, tokens: int64 [M].
        shares: [M].
    """

    rows: Tensor
    tokens: Tensor
    shares: Tensor


def cross_entropy(scores: Tensor, tokens: Tensor, smoothing: float = 0.0) -> Tensor:
    """−(1 − ε) log P(token) − ε / V · Σᵥ log P(v) of each row.

    Args:
        scores: [M, V].
        tokens: int64 [M].
        smoothing: ε; the released CLLM trainer has 0.1, its paper none.
    """
    return functional.cross_entropy(scores.float(), tokens, reduction="none", label_smoothing=smoothing)


@dataclass(frozen=True)
class Losses:
    """What each pair and each target of a batch costs.

    Attributes:
        divergence: float32 [pairs] the distance of student and teacher.
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
    """Scores the rows that are asked for, once each: a row may teach, and be taught its token.

    Args:
        scores: the LM head, [M, H] -> [M, V].
        states: [B × S, H].
        at_once: rows whose scores are held for the backward pass; more go in parts, which it computes again.
        labels: int64 [M] rows -> scores [M, V] that ``targets`` learn in place of their tokens.
    """
    rows, place = torch.cat([targets.rows, pairs.teachers]).unique(return_inverse=True)
    asked, teaching = place.split([len(targets.rows), len(pairs.teachers)])
    step = max(1, at_once // 2 if at_once else len(rows))  # with each row that teaches goes one that learns

    def part(states: Tensor, start: int, target: Tensor, pair: Tensor) -> tuple[Tensor, ...]:
        said = scores(states[rows[start : start + step]])
        answered, heard = said[asked[target] - start], said[teaching[pair] - start].detach()
        guessed, tokens = scores(states[pairs.students[pair]]), targets.tokens[target]
        return (
            distance(guessed, heard),
            guessed.argmax(-1) == heard.argmax(-1),
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
    target, pair = (torch.cat(each).argsort() for each in zip(*chosen, strict=True))  # where each element went
    divergence, agrees, surprise, right = map(torch.cat, zip(*parts, strict=True))
    return Losses(divergence[pair], agrees[pair], surprise[target], right[target])


def mean_of_rows(values: Tensor) -> Tensor:
    """The mean, a detached float32 scalar; 0 of nothing."""
    return values.detach().float().sum() / max(1, values.numel())


Norm = Literal["tokens", "blocks", "released"]


def progressive_consistency(packed: Packed, norm: Norm = "tokens") -> Pairs:
    """Jacobi Forcing: from the first wrong token of a noisy block on, say what the clean block says.

    L = Σⱼ Σ_{t ≥ fⱼ} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, k_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The row of a block's last token counts: it foresees the next block's first. The answer's last row does not, there
    being no next token; the released code learns from it and from all behind it unless they are pads.

    Args:
        packed: of one noisy stream, seen through one window.
    """
    kept = _behind_divergence(packed) & (packed.following >= 0)
    return _pairs(packed, kept, norm)


def global_consistency(packed: Packed, norm: Norm = "tokens", last: bool = False) -> Pairs:
    """CLLM, Eq. 4: from any state of a block, say what its fixed point says.

    L = Σⱼ Σ_{t ≥ fⱼ − 1} sⱼₜ KL(sg pθ(· | x, l_<j, lⱼ[..t]) ‖ pθ(· | x, l_<j, kⱼ[..t])),  fⱼ = min {t : kⱼ[t] ≠ lⱼ[t]}

    The first row is the one that foresees the first wrong token, as released: its divergence is 0, its share is not.

    Args:
        packed: of one noisy stream, seen through windows of one block.
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
    """
    return global_consistency(packed, norm, last)


def autoregressive(packed: Packed, prompt: bool = False) -> Targets:
    """L = −1/M Σ log pθ(token | text before it), over the answer's tokens, or the prompt's too.

    Args:
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
