"""Distances, held to sums in float64, to finite differences, and to what they become at the ends of beta."""

from __future__ import annotations

import importlib
import math
import random
from typing import Any

import pytest
import torch
from support.models import tiny_llama
from support.runs import made_up_trajectories

from specbench.common.options import parse_options
from specbench.training.objectives.distances import DistanceOptions, Measure, forward_kl, jensen_shannon, reverse_kl

BETAS = (0.1, 0.5, 0.9)
#: What a command line says, and the distance that it means.
CHOSEN: list[dict[str, Any]] = [
    {},
    {"distance": "reverse"},
    *({"distance": "jensen-shannon", "beta": str(beta)} for beta in BETAS),
]


def chosen(settings: dict[str, Any]) -> Measure:
    return parse_options(DistanceOptions, settings, "this test").measure


def shares(scores: list[float]) -> list[float]:
    total = math.fsum(map(math.exp, scores))
    return [math.exp(score) / total for score in scores]


def kl(p: list[float], q: list[float]) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def worked_out(settings: dict[str, Any], student: list[float], teacher: list[float]) -> float:
    q, p = shares(student), shares(teacher)
    if "beta" in settings:
        beta = float(settings["beta"])
        m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
        return beta * kl(p, m) + (1 - beta) * kl(q, m)
    return kl(q, p) if settings else kl(p, q)


@pytest.mark.parametrize("settings", CHOSEN, ids=str)
def test_values_are_those_of_plain_sums(settings: dict[str, Any]) -> None:
    draw = random.Random(0)
    rows = [[[draw.gauss(0, 3) for _ in range(7)] for _ in range(6)] for _ in range(2)]
    expected = [worked_out(settings, *pair) for pair in zip(*rows, strict=True)]
    found = chosen(settings)(*(torch.tensor(side, dtype=torch.float64) for side in rows))
    assert found.tolist() == pytest.approx(expected, rel=1e-10)
    # Scores of a model: shifted as a whole, and in another precision, which is computed with in float32.
    single = chosen(settings)(*(torch.tensor(side) + 40 for side in rows))
    assert (single.dtype, single.tolist()) == (torch.float32, pytest.approx(expected, abs=1e-4))
    half = chosen(settings)(*(torch.tensor(side, dtype=torch.bfloat16) for side in rows))
    assert (half.dtype, half.tolist()) == (torch.float32, pytest.approx(expected, rel=0.1, abs=0.05))


def test_the_ends_of_beta_are_the_two_divergences_and_its_middle_does_not_know_who_teaches() -> None:
    torch.manual_seed(1)
    student, teacher = (torch.randn(4, 9, dtype=torch.float64) for _ in range(2))
    low, high = (jensen_shannon(student, teacher, beta) / 1e-6 for beta in (1e-6, 1 - 1e-6))
    torch.testing.assert_close(low, forward_kl(student, teacher), rtol=1e-4, atol=0)
    torch.testing.assert_close(high, reverse_kl(student, teacher), rtol=1e-4, atol=0)
    torch.testing.assert_close(jensen_shannon(student, teacher), jensen_shannon(teacher, student))
    assert not torch.allclose(jensen_shannon(student, teacher, 0.2), jensen_shannon(teacher, student, 0.2))
    assert float(jensen_shannon(100 * student, 100 * teacher).max()) <= math.log(2) + 1e-12  # which is its bound


@pytest.mark.parametrize(("method", "own"), [("cllm", {}), ("jf", {"noise_window": 2, "noise_ends": "closed"})])
def test_a_method_learns_by_the_distance_of_its_options(method: str, own: dict[str, Any]) -> None:
    learning = importlib.import_module(f"specbench.methods.{method}.learning")
    model = tiny_llama(50)

    def loss(**settings: Any) -> tuple[float, float]:
        options = parse_options(learning.Options, {**own, **settings}, method)
        found = learning.Lesson(model, options)(**learning.Collator(options)([made_up_trajectories(answer=11)]))
        return float(found["consistency"]), float(found["autoregressive"])

    forward, reverse, even = loss(), loss(distance="reverse"), loss(distance="jensen-shannon")
    low = loss(distance="jensen-shannon", beta="0.001")
    assert loss(distance="forward", beta="0.9") == forward  # beta is no part of it
    assert low[0] / 0.001 == pytest.approx(forward[0], rel=0.02)
    assert len({round(each[0], 4) for each in (forward, reverse, even)}) == 3
    assert 0 < even[0] < math.log(2)
    assert {each[1] for each in (reverse, even, low)} == {forward[1]}  # the text itself is learnt as ever
