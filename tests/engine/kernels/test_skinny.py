"""Products of few rows, against exact ones and torch's: any sizes, any split, and a row alike in any company."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from specbench.engine.kernels import skinny as kernels
from specbench.engine.kernels.skinny import configs, skinny
from specbench.engine.layers.skinny import Config

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DTYPES = (torch.float32, HALF)
#: Relative error of all outputs, between two orders of the same sums.
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def noise(*shape: int, seed: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def tiles(dtype: torch.dtype, block_n: int = 32, splits: int = 1) -> Config:
    return Config(block_n, 64 // dtype.itemsize, splits, 4, 3)


def exact(x: Tensor, weight: Tensor, bias: Tensor | None, found: Tensor) -> bool:
    """Whether each output is the exact one, but for one rounding and for what a sum in float32 may lose."""
    wide, wide_weight = x.double(), weight.double()
    expected = nn.functional.linear(wide, wide_weight, None if bias is None else bias.double())
    lost = nn.functional.linear(wide.abs(), wide_weight.abs()) * 2**-20
    rounded = expected.abs() * torch.finfo(found.dtype).eps / 2 + 2**-25
    return bool(((found.double() - expected).abs() <= rounded + lost).all())


#: (N, K): of one tile and of less, of whole tiles, and of neither.
SHAPES = [(32, 64), (8, 16), (96, 256), (70, 200), (33, 141)]
# Every 55th has all pairs of a shape, splits, a bias and a type, and all numbers of rows.
CASES = [
    pytest.param(*case, marks=[] if at % 55 == 0 else pytest.mark.slow)
    for at, case in enumerate(product(SHAPES, (1, 2, 3, 4), (False, True), DTYPES, range(1, 17)))
]


@pytest.mark.parametrize(("shape", "splits", "has_bias", "dtype", "rows"), CASES)
def test_product(
    shape: tuple[int, int], splits: int, has_bias: bool, dtype: torch.dtype, rows: int, device: str
) -> None:
    outputs, inputs = shape
    x, weight = (noise(n, inputs, seed=n, dtype=dtype, device=device) for n in (rows, outputs))
    bias = noise(outputs, seed=3, dtype=dtype, device=device) if has_bias else None
    found = skinny(x, weight, bias, tiles(dtype, splits=splits))
    assert found.shape == (rows, outputs)
    assert found.dtype == dtype
    assert exact(x, weight, bias, found)
    expected = nn.functional.linear(x, weight, bias)
    assert (found - expected).float().norm() <= BOUND[dtype] * expected.float().norm()


@pytest.mark.parametrize("splits", [1, 3])
def test_products_of_bf16(splits: int, device: str) -> None:
    dtype = torch.bfloat16
    x, weight = (noise(n, 141, seed=n, dtype=dtype, device=device) for n in (5, 33))
    found = skinny(x, weight, None, tiles(dtype, splits=splits))
    expected = nn.functional.linear(x.double(), weight.double())
    assert (found - expected).norm() <= BOUND[dtype] * expected.norm()
    assert torch.equal(skinny(x[:1], weight, None, tiles(dtype, splits=splits)), found[:1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_configuration_computes_the_product(dtype: torch.dtype, device: str) -> None:
    x, weight = (noise(n, 264, seed=n, dtype=dtype, device=device) for n in (3, 140))
    for config in configs(140, 264, dtype, 132):
        assert exact(x, weight, None, skinny(x, weight, None, config)), config


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_is_the_same_in_any_company(splits: int, dtype: torch.dtype, device: str) -> None:
    x, weight = (noise(n, 100, seed=n, dtype=dtype, device=device) for n in (16, 40))
    whole = skinny(x, weight, None, tiles(dtype, splits=splits))
    for rows in (1, 2, 3, 7, 8, 9, 15):
        assert torch.equal(skinny(x[:rows], weight, None, tiles(dtype, splits=splits)), whole[:rows])


def test_arrivals_are_counted_from_zero_every_time(device: str) -> None:
    x, weight = (noise(n, 200, seed=n, dtype=HALF, device=device) for n in (5, 70))
    cut = tiles(HALF, splits=4)
    first = skinny(x, weight, None, cut)
    parts, arrived = kernels._parts(x.device, 8192), kernels.counters(x.device, weight.data_ptr(), 3)
    assert not arrived.any()
    parts.fill_(float("nan"))  # what was there before is not added
    assert torch.equal(skinny(x, weight, None, cut), first)
    assert not arrived.any()
    assert parts.isnan().logical_not().sum() == 4 * 5 * 70  # that memory it was


def test_each_weight_has_counters_of_its_own(device: str) -> None:
    x, cut = noise(5, 200, seed=1, dtype=HALF, device=device), tiles(HALF, splits=4)
    one, other = (noise(70, 200, seed=n, dtype=HALF, device=device) for n in (2, 3))
    expected = skinny(x, other, None, cut)
    skinny(x, one, None, cut)
    counts = kernels.counters(x.device, one.data_ptr(), 3)
    counts.fill_(1)  # as in the middle of a launch
    assert torch.equal(skinny(x, other, None, cut), expected)
    assert counts.tolist() == [1, 1, 1]
    counts.zero_()


def test_the_parts_are_added_in_their_order(device: str) -> None:
    """1 and a number that hides it: only in the order of the splits does it stay."""
    x = torch.ones(1, 64, device=device)
    for place, expected in ((1, 0.0), (3, 1.0)):
        weight = torch.zeros(1, 64, device=device)
        weight[0, 0], weight[0, 16], weight[0, 16 * place] = 2.0**30, -(2.0**30), 1.0
        if place == 1:  # 2^30 + 1 - 2^30
            weight[0, 16], weight[0, 32] = 1.0, -(2.0**30)
        assert skinny(x, weight, None, Config(16, 16, 4, 4, 3)).item() == expected


def test_the_bias_is_added_before_the_one_rounding(device: str) -> None:
    x, weight = torch.ones(1, 32, device=device, dtype=HALF), torch.zeros(1, 32, device=device, dtype=HALF)
    weight[0, :2] = torch.tensor([2048.0, 1.0])  # 2049 is no half
    bias = torch.tensor([-2048.0], device=device, dtype=HALF)
    assert skinny(x, weight, bias, tiles(HALF)).item() == 1.0


def test_rows_and_weights_may_be_parts_of_larger_ones(device: str) -> None:
    x = noise(7, 300, seed=1, dtype=torch.float32, device=device)[1:6, 100:]
    weight = noise(70, 300, seed=2, dtype=torch.float32, device=device)[20:, 50:250]
    assert exact(x, weight, None, skinny(x, weight, None, tiles(torch.float32, splits=2)))
    assert exact(x[2:3], weight, None, skinny(x[2:3], weight, None, tiles(torch.float32, splits=2)))


@pytest.mark.slow
def test_offsets_are_wider_than_32_bits(device: str) -> None:
    """The last of three tiles starts at 2^31; of the memory between the rows nothing is ever touched."""
    apart = 2**25
    weight = torch.empty(95 * apart + 16, dtype=HALF, device=device).as_strided((96, 16), (apart, 1))
    weight.copy_(noise(96, 16, seed=1, dtype=HALF, device=device))
    x = noise(2, 16, seed=2, dtype=HALF, device=device)
    assert exact(x, weight, None, skinny(x, weight, None, tiles(HALF)))


WEIGHTS = [
    (outputs, inputs, processors)
    for outputs, inputs in (
        (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (152064, 8192), (576, 576), (576, 1536), (1, 1),
    )
    for processors in (108, 132, 148)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("outputs", "inputs", "processors"), WEIGHTS)
def test_configurations(outputs: int, inputs: int, processors: int, dtype: torch.dtype) -> None:
    found = configs(outputs, inputs, dtype, processors)
    assert 1 <= len(found) == len(set(found)) <= 6
    large = outputs * inputs * dtype.itemsize >= 32 << 20
    for at, config in enumerate(found):
        stage = (config.block_n + 16) * config.block_k * dtype.itemsize
        assert (config.stages - 1) * stage <= 99 << 10, "a program does not fit the smallest cards"
        assert config.block_n >= 8 * config.warps, "warps have no outputs of their own"
        span, splits = kernels._spans(inputs, config)
        assert splits == config.splits, "a split has nothing to do"
        programs = -(-outputs // config.block_n) * splits
        together = min(programs, processors * ((160 << 10) // ((config.stages - 1) * stage)))
        flying = together * (config.stages - 2) * config.block_n * config.block_k * dtype.itemsize
        if large and at < 3:
            assert flying / processors >= 24 << 10, "too few bytes are in flight"
            waves = programs / together
            assert waves == 1 or waves / -(-waves // 1) >= 0.75, "the last wave is small"
        assert splits == 1 or programs <= processors or span >= config.stages * config.block_k
