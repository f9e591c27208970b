"""Measure the distance between a student's and its teacher's next-token distributions, per row, at temperature 1.

P is the teacher's distribution and Q the student's. Both are given as scores; the teacher's get no gradient.
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
    """The distance that a student minimises. Options of every recipe that learns from a distribution."""

    distance: Distance = option(
        "forward",
        help="distance from the teacher: forward KL (as published), reverse KL, or generalised Jensen-Shannon",
    )
    beta: float = option(
        0.5, help="beta of jensen-shannon: near 0 it behaves like forward, near 1 like reverse", gt=0, lt=1
    )

    @property
    def measure(self) -> Measure:
        """The chosen distance function."""
        if self.distance == "jensen-shannon":
            return partial(jensen_shannon, beta=self.beta)
        return forward_kl if self.distance == "forward" else reverse_kl


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(sg P ‖ Q) = Σᵥ P(v) (log P(v) − log Q(v)) of each row.

    The code of CLLM and Jacobi Forcing reports −Σᵥ P(v) log Q(v): the gradient is the same, the value is larger by the
    entropy of P.

    Args:
        student, teacher: scores [M, V]; the teacher's get no gradient.
    """
    return _divergence(_logarithms(student), _logarithms(teacher.detach()))


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(Q ‖ sg P) = Σᵥ Q(v) (log Q(v) − log P(v)) of each row: mode-seeking."""
    return _divergence(_logarithms(teacher.detach()), _logarithms(student))


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    """β KL(sg P ‖ M) + (1 − β) KL(Q ‖ M), M = β P + (1 − β) Q, of each row (Agarwal et al. 2024, arXiv:2306.13649).

    Divided by β it approaches the forward divergence for β → 0; divided by 1 − β, the reverse divergence for β → 1.

    Args:
        beta: β, between 0 and 1.
    """
    p, q = _logarithms(teacher.detach()), _logarithms(student)
    mixed = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return beta * _divergence(mixed, p) + (1 - beta) * _divergence(mixed, q)


def _divergence(other: Tensor, of: Tensor) -> Tensor:
    """Σᵥ exp(of) (of − other) of each row of logarithms."""
    return functional.kl_div(other, of, reduction="none", log_target=True).sum(-1)


def _logarithms(scores: Tensor) -> Tensor:
    """Return log-probabilities in float32 or a wider type."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
