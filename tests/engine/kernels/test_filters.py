"""Filters by searching: the tokens that the sampler keeps by sorting, for every kind of row and any cut into pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine import sampler
from specbench.engine.kernels import filters
from specbench.engine.kernels.filters import keep, limits_of
from specbench.engine.kernels.sample import choose
from specbench.engine.sampler import Sampling

inf, nan = math.inf, math.nan
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def device_arguments(sampling: Sampling, device: str) -> dict[str, Any]:
    """The parameters of a sampling as tensors on the device."""
    return {
        "temperature": torch.tensor([sampling.temperature], device=device),
        "top_k": torch.tensor([sampling.top_k], device=device) if sampling.top_k else None,
        "top_p": torch.tensor([sampling.top_p], dtype=torch.float64, device=device) if sampling.top_p < 1 else None,
    }


def kept(logits: Tensor, sampling: Sampling, device: str, processors: int = 1) -> Tensor:
    given, logits = device_arguments(sampling, device), logits.to(device)
    limits = limits_of(logits, processors=processors, **given)
    return keep(logits, limits, temperature=given["temperature"]).cpu()


def same(logits: Tensor, sampling: Sampling, device: str, processors: int = 1) -> None:
    expected = sampler.filtered(logits, sampling)
    torch.testing.assert_close(kept(logits, sampling, device, processors), expected, rtol=0, atol=0, equal_nan=True)


def rows(vocab: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[1, 3, V]: as models give them, with many ties, and as flat as noise; a view of rows that are longer."""
    wide = torch.randn(1, 4, vocab + 9, generator=torch.Generator().manual_seed(seed))
    wide[0, 1] *= 3
    wide[0, 2] = wide[0, 2].mul(3).round()
    wide[..., vocab:] = 99  # never to be read
    return wide.to(dtype)[:, 1:, :vocab]


# (tokens, dtype, processors, k, p, temperature): each value with several of the others.
CASES = [
    (1, "fp32", 1, 0, 0.5, 1.0),
    (5, "bf16", 1, 9, 0.9, 0.7),
    (700, "fp16", 9, 40, 1.0, 1.3),
    (300, "fp32", 1, 40, 0.8, 0.3),
    (1024, "bf16", 1, 0, 1e-9, 1.0),
    (1100, "bf16", 9, 0, 0.9, 1.3),
    (1100, "fp16", 9, 1, 0.999, 0.7),
    (600, "fp32", 1, 0, 1 - 2**-53, 0.3),
    (2100, "bf16", 9, 5, 1.0, 1.0),
]
PRODUCT = product((5, 1500, 4700), DTYPES, (1, 500), (0, 40), (1.0, 0.9, 0.05), (0.7,))


@pytest.mark.parametrize(
    ("vocab", "dtype", "processors", "top_k", "top_p", "temperature"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in PRODUCT if case[3] or case[4] < 1)],
)
def test_the_samplers_tokens_stay(
    vocab: int, dtype: str, processors: int, top_k: int, top_p: float, temperature: float, device: str
) -> None:
    same(rows(vocab, DTYPES[dtype]), Sampling(temperature, top_k, top_p), device, processors)


ODD: dict[str, Sequence[float]] = {
    "one infinity": [inf, 3.0, -1.0],
    "infinities": [inf, 3.0, inf, -1.0, inf, -inf],
    "NaN": [nan, 3.0, inf, -nan, 0.0, nan, -inf],
    "nothing left": [-inf] * 7,
    "one left": [-inf, -inf, -4.0, -inf],
    "all equal": [2.0] * 9,
    "zeros of either sign": [0.0, -0.0, -1.0, -0.0, 0.0],
    "negative": [-5.0, -5.5, -6.0, -5.0, -7.0],
    "both signs": [0.25, -0.25, 0.0, 1e-5, -1e-5],
    "too far apart": [3e38, -3e38, 3e38, 1.0],
}


@pytest.mark.parametrize(
    ("dtype", "sampling"),
    [
        ("bf16", Sampling(1.0, top_k=2)),
        ("bf16", Sampling(1e-4, 3, 0.6)),
        ("fp32", Sampling(0.7, 0, 0.5)),
        pytest.param("fp32", Sampling(1.0, top_k=2), marks=pytest.mark.slow),
        pytest.param("fp32", Sampling(1e-4, 3, 0.6), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_odd_rows(sampling: Sampling, dtype: str, device: str) -> None:
    # Each row is filled up with what weighs nothing in it.
    least = {"nothing left": -inf, "all equal": 2.0}
    wide = torch.stack([torch.tensor([*row, *[least.get(name, -100.0)] * (9 - len(row))]) for name, row in ODD.items()])
    same(wide[None].to(DTYPES[dtype]), sampling, device)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_ties_stay_in_the_order_of_their_ids_across_pieces(top_p: float, device: str) -> None:
    logits = torch.full((1, 2, 2100), -1.0, dtype=torch.bfloat16)
    logits[0, 0, ::3] = 2.0
    logits[0, 1, 1000:1030] = 2.0
    same(logits, Sampling(1.0, top_p=top_p), device, processors=500)


@pytest.mark.parametrize(
    ("dtype", "sampling"),
    [
        ("bf16", Sampling(0.9, 0, 0.7, seed=3)),
        ("bf16", Sampling(1.4, 20, 0.9, seed=1 << 40)),
        ("fp16", Sampling(0.9, 7, seed=3)),
        ("fp32", Sampling(0.9, 0, 0.7, seed=1 << 40)),
    ],
    ids=str,
)
def test_the_choice_is_the_samplers(dtype: str, sampling: Sampling, device: str) -> None:
    """Fused with the noise, and of what was kept before."""
    logits, positions = rows(1200, DTYPES[dtype], seed=4)[:, 1:], torch.tensor([[7, 8]])
    given, seed = device_arguments(sampling, device), torch.tensor([sampling.seed], device=device)
    limits = limits_of(logits.to(device), processors=5, **given)
    assert limits.shares.shape == (2, 2)
    temperature, at = given["temperature"], positions.to(device)
    fused = choose(logits.to(device), at, seed=seed, temperature=temperature, greedy=False, limits=limits)
    before = keep(logits.to(device), limits, temperature=temperature)
    after = choose(before, at, seed=seed, temperature=torch.ones_like(temperature), greedy=False)
    expected = sampler.scores(logits, positions, sampling).argmax(-1)
    assert fused.tolist() == after.tolist() == expected.tolist()


# ------------------------------------------------------------------ masses


@triton.jit
def _masses(scores, largest, out, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + at, mask=at < count, other=0.0)
    tl.store(out + at, filters._mass(score, tl.load(largest)), mask=at < count)


@pytest.mark.parametrize("largest", [0.0, 17.3, -40.5, 1e-30, inf, -inf, nan])
def test_masses_are_the_samplers_bit_by_bit(largest: float, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    gaps = torch.cat([torch.rand(60_000, generator=generator) * 34, torch.arange(80) * math.log(2), torch.zeros(1)])
    scores, top = torch.cat([largest - gaps, torch.tensor([-inf])]), torch.tensor([[largest]])
    found = torch.empty(len(scores), dtype=torch.int64, device=device)
    block = 1 << 16
    _masses[(triton.cdiv(len(scores), block),)](
        scores.to(device), top.to(device), found, len(scores), BLOCK=block, enable_fp_fusion=False
    )
    assert torch.equal(found.cpu(), sampler._masses(scores[None], top)[0])
