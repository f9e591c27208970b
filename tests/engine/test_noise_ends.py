"""The ends of the noise: the least and the largest random bits, which no sample ever draws, make numbers too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from specbench.engine import sampler
from specbench.engine.sampler import Stream

DRAFT_NUMBERS = [0.64852090143446, 0.65459414241307, 0.21037421530001, 0.92099777937383]
VERIFY_NUMBERS = [0.33988338611895, 0.17796294613505, 0.69927361621534, 0.6245118958234]
NOISE = [1.384169, 2.602454, 0.072923, -0.302333]
BITS = [0, 1, 2, 1 << 10, 1 << 31, (1 << 32) - 2, (1 << 32) - 1]


def test_any_bits_make_the_noise_of_the_middle_of_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def bits(low: Any, high: Any, positions: Any, numbers: Any) -> torch.Tensor:
        return torch.tensor(BITS)[numbers].expand(*positions.shape, len(numbers))

    monkeypatch.setattr(sampler, "_bits", bits)
    (noise,) = sampler.gumbel(torch.tensor([[3]]), torch.tensor([[5, 6]]), len(BITS))
    for row in noise.tolist():
        for found, bit in zip(row, BITS, strict=True):
            share = min((bit + 0.5) / 2**32, 1 - 2**-24)
            assert found == pytest.approx(-math.log(-math.log1p(-share)), abs=1e-5)


def test_noise_and_numbers_are_those_of_every_version() -> None:
    """A seed names the same texts for good: other constants make noise as random, and another run."""
    stored = {Stream.DRAFT: DRAFT_NUMBERS, Stream.VERIFY: VERIFY_NUMBERS}
    for stream, numbers in stored.items():
        assert sampler.uniforms(1 << 40 | 7, stream, [3, 900], 2).flatten().tolist() == pytest.approx(
            numbers, abs=1e-12
        )
    noise = sampler.gumbel(torch.tensor([[1 << 40 | 7]]), torch.tensor([[3, 900]]), 2)
    assert noise.flatten().tolist() == pytest.approx(NOISE, abs=1e-5)
