"""Losses of rows, against values worked out by hand on a vocabulary of three tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specbench.training.objectives.distances import forward_kl
from specbench.training.objectives.losses import Losses, Pairs, Targets, cross_entropy, evaluate_losses

LN2 = math.log(2)
HALF_FIRST, HALF_SECOND, EVEN = [1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 2, 1 / 4], [1 / 3] * 3


def scores(*rows: list[float]) -> Tensor:
    """Scores of these distributions, each shifted by its own constant, which must not matter."""
    return torch.tensor(rows).log() + torch.arange(1.0, 1 + len(rows))[:, None]


def test_cross_entropy_by_hand() -> None:
    rows, tokens = scores(HALF_FIRST, HALF_FIRST), torch.tensor([0, 2])
    assert cross_entropy(rows, tokens).tolist() == pytest.approx([LN2, 2 * LN2])
    # 0.7 · ln 2 + 0.3 / 3 · (ln 2 + ln 4 + ln 4)
    assert float(cross_entropy(rows, tokens, 0.3)[0]) == pytest.approx(0.7 * LN2 + 0.1 * 5 * LN2)


def everything(weight: Tensor, states: Tensor, at_once: int | None) -> Losses:
    pairs = Pairs(torch.tensor([5, 0, 3]), torch.tensor([1, 6, 1]), torch.tensor([0.5, 0.3, 0.2]))
    targets = Targets(torch.tensor([6, 2, 1, 4]), torch.tensor([2, 0, 1, 1]), torch.full((4,), 0.25))
    return evaluate_losses(lambda rows: rows @ weight, states, pairs, targets, 0.1, at_once)


def test_pairs_and_targets_keep_their_order_in_whatever_parts() -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(8, 4), torch.randn(4, 3)
    logits, tokens = states @ weight, torch.tensor([2, 0, 1, 1])
    students, teachers, rows = (logits[at] for at in ([5, 0, 3], [1, 6, 1], [6, 2, 1, 4]))
    for at_once in (None, 2, 4, 100):
        found = everything(weight, states, at_once)
        torch.testing.assert_close(found.divergence, forward_kl(students, teachers))
        torch.testing.assert_close(found.surprise, cross_entropy(rows, tokens, 0.1))
        assert found.agrees.tolist() == (students.argmax(-1) == teachers.argmax(-1)).tolist()
        assert found.right.tolist() == (rows.argmax(-1) == tokens).tolist()


def test_parts_have_the_gradient_of_the_whole() -> None:
    torch.manual_seed(1)
    start, weight = torch.randn(8, 4), torch.randn(4, 3, requires_grad=True)
    gradients: list[tuple[Tensor | None, Tensor]] = []
    for at_once in (None, 2, 4):
        states = start.clone().requires_grad_()
        weight.grad = None
        found = everything(weight, states, at_once)
        (found.divergence.sum() + 2 * found.surprise.sum()).backward()
        assert weight.grad is not None
        gradients.append((states.grad, weight.grad.clone()))
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_rows_that_only_teach_have_no_gradient() -> None:
    torch.manual_seed(2)
    states, weight = torch.randn(8, 4, requires_grad=True), torch.randn(4, 3)
    everything(weight, states, None).divergence.sum().backward()
    assert states.grad is not None
    assert states.grad.abs().sum(1).ne(0).tolist() == [row in (5, 0, 3) for row in range(8)]
