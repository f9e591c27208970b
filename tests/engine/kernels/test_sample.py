"""The fused choice of the next token: its noise is the sampler's, bit by bit, and so is the token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine import sampler
from specbench.engine.kernels import sample as kernels
from specbench.engine.kernels.sample import choose
from specbench.engine.sampler import Sampling

# ------------------------------------------------------------------ the noise


@triton.jit
def _random_bits(seed, positions, out, vocab, BLOCK: tl.constexpr):  # noqa: N803
    row, token = tl.program_id(0), tl.arange(0, BLOCK)
    first, second = kernels._keys(tl.load(seed), tl.load(positions + row))
    tl.store(out + row * vocab + token, kernels._bits(first, second, token).to(tl.int64), mask=token < vocab)


@triton.jit
def _noise(bits, uniform_log, gumbel, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(bits + at, mask=at < count, other=0).to(tl.uint32)
    u = tl.minimum((value.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355224609375)
    tl.store(uniform_log + at, kernels._log1m(u), mask=at < count)
    tl.store(gumbel + at, kernels._gumbel(value), mask=at < count)


@triton.jit
def _logs(x, out, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, kernels._log(tl.load(x + at, mask=at < count, other=1.0)), mask=at < count)


def ulps(a: Tensor, b: Tensor) -> int:
    """The most float32 values that lie between two tensors' elements."""

    def place(x: Tensor) -> np.ndarray:
        bits = x.numpy().view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return int(np.abs(place(a) - place(b)).max())


def all_kinds_of_bits() -> Tensor:
    """Both ends of the range, the surroundings of every power of two, and draws uniform in value and in exponent."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(300_000, generator=generator, dtype=torch.float64)
    largest = (1 << 32) - 1
    near = [(1 << power) + torch.arange(-200, 200) for power in range(9, 33)]
    parts = [
        torch.arange(20_000),
        largest - torch.arange(20_000),
        (uniform * 2**32).long(),
        (2 ** (32 * uniform)).long(),
    ]
    return torch.cat(parts + near).clamp(0, largest)


@pytest.mark.parametrize("seed", [0, 1, 12345, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 0x1234567890ABCDEF])
def test_random_bits_are_the_samplers(seed: int, device: str) -> None:
    positions, vocab = torch.tensor([0, 1, 511, 65_536, 2_000_000, 2**31 - 1], dtype=torch.int32), 300
    out = torch.empty(len(positions), vocab, dtype=torch.int64, device=device)
    _random_bits[(len(positions),)](torch.tensor([seed], device=device), positions.to(device), out, vocab, BLOCK=512)
    # what gumbel() makes its uniforms of
    mask, mix = 0xFFFFFFFF, sampler._mix
    key, at = torch.tensor([seed]), positions.long()
    first = mix((mix((key & mask) ^ 0x9E3779B9) + at * 0x9E3779B1) & mask)
    second = mix((mix((key >> 32) ^ 0x85EBCA6B) ^ first) + at & mask)
    expected = mix(mix((torch.arange(vocab) + first[:, None]) & mask) ^ second[:, None])
    assert torch.equal(out.cpu(), expected)
    # and that these are the bits it uses: 24 of them decide a noise, so equal noises are equal bits
    noise, again = torch.empty(2, expected.numel(), device=device)
    _noise[(1,)](out, again, noise, expected.numel(), BLOCK=2048)
    theirs = sampler.gumbel(torch.tensor([[seed]]), at[None], vocab).flatten()
    assert torch.allclose(noise.cpu(), theirs, rtol=3e-7, atol=3e-7)


def test_logarithms_are_within_two_ulp_of_torch(device: str) -> None:
    bits = all_kinds_of_bits()
    ours, noise = torch.empty(2, len(bits), device=device)
    block = 1 << 13 if device == "cuda" else 1 << 17
    _noise[(triton.cdiv(len(bits), block),)](bits.to(device), ours, noise, len(bits), BLOCK=block)
    u = ((bits.float() + 0.5) * 2.0**-32).clamp_(max=1 - 2.0**-24)
    assert float(u.min()) == 2.0**-33
    assert ulps(ours.cpu(), torch.log1p(-u)) <= 2
    ours_of_same = torch.empty_like(noise)
    x = -torch.log1p(-u)
    _logs[(triton.cdiv(len(x), block),)](x.to(device), ours_of_same, len(x), BLOCK=block)
    assert ulps(ours_of_same.cpu(), torch.log(x)) <= 2
    # Where the outer logarithm passes through 0 an ulp of its argument is many of its own; a score is never that small.
    theirs = -torch.log(x)
    assert float(((noise.cpu() - theirs).abs() / theirs.abs().clamp_min(1)).max()) <= 2 * 2.0**-23
    assert torch.isfinite(noise).all()


# ------------------------------------------------------------------ the choice


def chosen(
    logits: Tensor, positions: Tensor, sampling: Sampling, device: str, *, processors: int | None = None
) -> Tensor:
    return choose(
        logits.to(device),
        positions.to(device, torch.int64),
        seed=torch.tensor([sampling.seed], device=device),
        temperature=torch.tensor([sampling.temperature or 1.0], device=device),
        greedy=sampling.greedy,
        processors=processors,
    ).cpu()


def logits_of(slots: int, rows: int, vocab: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Logits as models give them: a few tokens stand out; views of rows that are longer than the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    wide = 2 * torch.randn(slots, rows + 1, vocab + 9, generator=generator)
    wide[..., vocab:] = 99  # never to be read
    return wide.to(dtype)[:, 1:, :vocab]


SHAPES = [(1, 1, 5), (2, 3, 1000), (1, 2, 5000), (3, 5, 1024), (1, 1, 9217)]


@pytest.mark.parametrize(("processors", "dtype"), [(1, torch.float32), (7, torch.bfloat16), (500, torch.float16)])
def test_greedy_is_the_first_of_the_largest(dtype: torch.dtype, processors: int, device: str) -> None:
    for slots, rows, vocab in SHAPES:
        logits = logits_of(slots, rows, vocab, dtype)
        if dtype != torch.float32:
            logits = logits.round()  # many maxima in a row
        positions = torch.zeros(slots, rows, dtype=torch.int64)
        first = (logits == logits.max(-1, keepdim=True).values).int().argmax(-1)
        token = chosen(logits, positions, Sampling(), device, processors=processors)
        assert token.dtype == torch.int32
        assert torch.equal(token.long(), first)


@pytest.mark.parametrize(
    ("sampling", "dtype", "processors"),
    [
        (Sampling(temperature=1.0, seed=3), torch.float32, 1),
        (Sampling(temperature=1.0, seed=3), torch.bfloat16, 500),
        (Sampling(temperature=0.3, seed=1 << 40), torch.float16, 1),
        (Sampling(temperature=0.3, seed=1 << 40), torch.float32, 500),
        (Sampling(temperature=1.7), torch.bfloat16, 1),
        (Sampling(temperature=1.7), torch.float16, 500),
    ],
)
def test_sampled_is_the_samplers_choice(sampling: Sampling, dtype: torch.dtype, processors: int, device: str) -> None:
    for slots, rows, vocab in SHAPES:
        logits = logits_of(slots, rows, vocab, dtype)
        generator = torch.Generator().manual_seed(vocab)
        positions = torch.randint(0, 1 << 20, (slots, rows + 3), generator=generator)[:, :rows]  # a view, as logits are
        scores = sampler.scores(logits, positions, sampling)
        best = scores.topk(2, dim=-1).values
        near = (best[..., 0] - best[..., 1]) < 1e-5 * best[..., 0].abs()
        token = chosen(logits, positions, sampling, device, processors=processors)
        assert torch.equal(token[~near].long(), scores.argmax(-1)[~near])
        taken = scores.gather(-1, token[..., None].long())[..., 0]
        assert torch.all(taken >= best[..., 0] - 1e-5 * best[..., 0].abs())


@pytest.mark.parametrize("processors", [1, 500], ids=["one split", "a split a tile"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_rows_with_infinities_and_nan(sampling: Sampling, processors: int, device: str) -> None:
    inf, vocab = math.inf, 2600
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(1))
    logits[0, [7, 1200, 2500]] = math.nan  # the first NaN
    logits[1] = -inf  # id 0
    logits[2] = -inf
    logits[2, 2599] = -4.0
    logits[3, [2000, 2100]] = inf  # the first infinity
    logits[4, 1300], logits[4, 5] = -math.nan, inf  # NaN is above infinity, whatever its sign
    logits[5] = math.nan
    positions = torch.arange(6)[None]
    token = chosen(logits[None], positions, sampling, device, processors=processors)
    assert token.tolist() == [[7, 0, 2599, 2000, 1300, 0]]
    assert torch.equal(token.long(), sampler.scores(logits[None], positions, sampling).argmax(-1))


def test_positions_may_lie_between_other_fields(device: str) -> None:
    fields, sampling = torch.arange(2 * 3 * 7).reshape(2, 3, 7), Sampling(temperature=1.0, seed=2)
    positions = fields[:, 1].to(device, torch.int32)[:, :4]  # a row of seven, of which four are asked for
    logits = torch.zeros(2, 4, 300)
    expected = sampler.scores(logits, fields[:, 1, :4], sampling).argmax(-1)
    assert torch.equal(chosen(logits, positions, sampling, device).long(), expected)
