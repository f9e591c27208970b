"""Consistency and autoregressive losses of chosen rows of a batch.

Which rows, with what shares, is each method's objective (``objectives.py``); here they are scored and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Pairs:
    """Rows that learn from rows: Σᵢ shareᵢ · KL(sg p(teacherᵢ) ‖ p(studentᵢ)).

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


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(sg P ‖ Q) = Σᵥ P(v) (log P(v) − log Q(v)) of each row, at temperature 1.

    Both papers' code reports −Σᵥ P(v) log Q(v), which has the same gradient and is larger by the entropy of P.

    Args:
        student, teacher: scores [M, V]; no gradient goes into the teacher's.
    """
    taught = teacher.detach().float().log_softmax(-1)
    return functional.kl_div(student.float().log_softmax(-1), taught, reduction="none", log_target=True).sum(-1)


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
        divergence: float32 [pairs] :func:`forward_kl`.
        agrees: bool [pairs] whether both rows have the same best token.
        surprise: float32 [targets] :func:`cross_entropy`.
        right: bool [targets] whether the token is the row's best.
    """

    divergence: Tensor
    agrees: Tensor
    surprise: Tensor
    right: Tensor


def evaluate(
    scores: Callable[[Tensor], Tensor],
    states: Tensor,
    pairs: Pairs,
    targets: Targets,
    smoothing: float = 0.0,
    at_once: int | None = None,
) -> Losses:
    """Scores the rows that are asked for, once each: a row may teach, and be taught its token.

    Args:
        scores: the LM head, [M, H] -> [M, V].
        states: [B × S, H].
        pairs, targets: rows of ``states``.
        smoothing: see :func:`cross_entropy`.
        at_once: rows whose scores are held for the backward pass; more go in parts, which it computes again.
    """
    rows, place = torch.cat([targets.rows, pairs.teachers]).unique(return_inverse=True)
    asked, teaching = place.split([len(targets.rows), len(pairs.teachers)])
    step = max(1, at_once // 2 if at_once else len(rows))  # with each row that teaches goes one that learns

    def part(states: Tensor, start: int, target: Tensor, pair: Tensor) -> tuple[Tensor, ...]:
        said = scores(states[rows[start : start + step]])
        answered, heard = said[asked[target] - start], said[teaching[pair] - start].detach()
        guessed, tokens = scores(states[pairs.students[pair]]), targets.tokens[target]
        return (
            forward_kl(guessed, heard),
            guessed.argmax(-1) == heard.argmax(-1),
            cross_entropy(answered, tokens, smoothing),
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


def mean(values: Tensor) -> Tensor:
    """The mean, a detached float32 scalar; 0 of nothing."""
    return values.detach().float().sum() / max(1, values.numel())
