"""How far a student's next-token distribution is from its teacher's, one figure a row, at temperature 1.

P is the teacher's distribution and Q the student's; both come as scores, and no gradient goes into the teacher's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from specbench.common import Options, option

#: (student, teacher) scores [M, V] -> [M].
Measure = Callable[[Tensor, Tensor], Tensor]

Distance = Literal["forward", "reverse", "jensen-shannon"]


class DistanceOptions(Options):
    """Which distance a student learns by. Options of every method that learns from a distribution."""

    distance: Distance = option(
        "forward", help="from the teacher: KL as published, KL the other way, or generalised Jensen-Shannon"
    )
    beta: float = option(0.5, help="of jensen-shannon: near 0 like forward, near 1 like reverse", gt=0, lt=1)

    @property
    def measure(self) -> Measure:
        """The distance itself."""
        if self.distance == "jensen-shannon":
            return partial(jensen_shannon, beta=self.beta)
        return forward_kl if self.distance == "forward" else reverse_kl


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(sg P ‖ Q) = Σᵥ P(v) (log P(v) − log Q(v)) of each row.

    Both papers' code reports −Σᵥ P(v) log Q(v), which has the same gradient and is larger by the entropy of P.

    Args:
        student, teacher: scores [M, V]; no gradient goes into the teacher's.
    """
    return _divergence(_logarithms(student), _logarithms(teacher.detach()))


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(Q ‖ sg P) = Σᵥ Q(v) (log Q(v) − log P(v)) of each row: a student that leaves out what it cannot say."""
    return _divergence(_logarithms(teacher.detach()), _logarithms(student))


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    """β KL(sg P ‖ M) + (1 − β) KL(Q ‖ M), M = β P + (1 − β) Q, of each row (Agarwal et al. 2024, arXiv:2306.13649).

    Divided by β it is the forward divergence where β goes to 0; divided by 1 − β the reverse one where β goes to 1.

    Args:
        beta: β, between 0 and 1.
    """
    taught, said = _logarithms(teacher.detach()), _logarithms(student)
    mixed = torch.logaddexp(taught + math.log(beta), said + math.log1p(-beta))
    return beta * _divergence(mixed, taught) + (1 - beta) * _divergence(mixed, said)


def _divergence(other: Tensor, of: Tensor) -> Tensor:
    """Σᵥ exp(of) (of − other) of each row of logarithms."""
    return functional.kl_div(other, of, reduction="none", log_target=True).sum(-1)


def _logarithms(scores: Tensor) -> Tensor:
    """Log-probabilities, in float32 at least."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
