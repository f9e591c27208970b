"""Multiply few rows by a weight, reading the weight once at the full memory bandwidth.

Rows are always padded to the 16 rows of a matrix instruction, and any number of rows runs the same code on the same
tiles: the result of a row does not depend on other rows. If the outputs make too few programs for the GPU, several
programs divide the inputs of a tile. The last of them to finish adds the partial sums in a fixed order, so that a
product has the same bits each time. A product is one launch, i.e. one node of a graph.

With programmatic dependent launch, a program prefetches its first weights into L2 before it waits for its rows, which
is safe because no earlier kernel writes weights. The computation and its order stay the same.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels import dependent
from specbench.engine.kernels.dependent import counters, wait_for_inputs
from specbench.engine.layers.skinny import MOST_ROWS, Config

_SPLITS = (1, 2, 3, 4, 6, 8)
_MOST_CONFIGS = 6
_ALIKE = 0.9  # factor on a configuration's worth for each chosen one with the same tiles, as the guess may be wrong
_IN_FLIGHT = 32 << 10  # bytes of loads in flight that a multiprocessor needs for the full memory bandwidth
_SHARED = 160 << 10  # bytes of shared memory per multiprocessor, the least of all widely used data-centre GPUs
_THREADS = 2048  # most threads of a multiprocessor
_OPTIONS = {"enable_fp_fusion": True}  # for exact fp32, which has no matrix unit
# (outputs, bytes of inputs, warps, stages) of a tile: 8 to 32 KiB of weights per stage, each row in pieces of at least
# 128 bytes, and less than the 99 KiB of shared memory that the smallest GPUs give a program.
_TILES = (
    (128, 128, 4, 5),
    (64, 256, 4, 5),
    (128, 256, 8, 3),
    (64, 128, 4, 7),
    (32, 256, 4, 7),
    (256, 128, 8, 3),
)


_LINE = 128  # bytes that one prefetch asks for


@triton.jit
def _prefetch(at):
    """Prefetch the cache lines that contain the pointers."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])  # one row and 16 rows are the same code
def _skinny(
    x, weight, bias, out, parts, arrived, rows, outputs, inputs, x_row, weight_row, span,
    BIAS: tl.constexpr, WHOLE: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, LINE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (tile of outputs, split): multiply over ``span`` inputs, which are whole tiles.

    ``WHOLE``: whether all inputs are a multiple of a tile. ``AHEAD``: tiles of the weight to prefetch before the rows
    are ready, in lines of ``LINE`` elements.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    first, begin = tile * BLOCK_N, split * span
    at_row, at_n, at_k = tl.arange(0, ROWS), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    alive = (at_row < rows)[:, None]
    # After the last output, its weights are read again (from a cache), so that no mask is needed.
    near = tl.minimum(at_n, outputs - 1 - first)
    few_from = x + at_row[:, None] * x_row + at_k[None, :]
    weight_from = weight + first.to(tl.int64) * weight_row + near[:, None] * weight_row + at_k[None, :]
    if PDL:
        lines: tl.constexpr = BLOCK_K // LINE
        of_weight = weight + first.to(tl.int64) * weight_row + near[:, None] * weight_row
        last = tl.minimum(begin + span, inputs) - 1
        for tile_ahead in tl.static_range(AHEAD):
            line = begin + tile_ahead * BLOCK_K + tl.arange(0, lines) * LINE
            _prefetch(of_weight + tl.minimum(line, last)[None, :])
    wait_for_inputs(PDL)
    acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for k in range(begin, tl.minimum(begin + span, inputs), BLOCK_K):
        if WHOLE:
            few = tl.load(few_from + k, mask=alive, other=0.0)
            some = tl.load(weight_from + k)
        else:
            inside = (at_k < inputs - k)[None, :]
            few = tl.load(few_from + k, mask=alive & inside, other=0.0)
            some = tl.load(weight_from + k, mask=inside, other=0.0)
        acc = tl.dot(few, tl.trans(some), acc, input_precision="ieee")
    column = first + at_n
    inside = alive & (column < outputs)[None, :]
    to = at_row[:, None] * outputs + column[None, :]
    if SPLITS > 1:
        size = rows * outputs
        tl.store(parts + split * size + to, acc, mask=inside)
        tl.debug_barrier()  # all threads must have stored before one of them increments the counter
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") < SPLITS - 1:
            return
        acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for part in tl.static_range(SPLITS):
            # From L2, where the parts of other programs are.
            acc += tl.load(parts + part * size + to, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    if BIAS:
        acc += tl.load(bias + column, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=inside)


def skinny(x: Tensor, weight: Tensor, bias: Tensor | None, config: Config) -> Tensor:
    """Compute ``nn.functional.linear`` of up to 16 rows: summed in float32, bias included, and rounded once.

    Splits store partial sums in memory that all launches share (launches never overlap there), and count their arrivals
    in counters of this weight. Both are allocated at a weight's first launch, which therefore must not be inside a
    capture.

    Args:
        x: [n, K], n from 1 to 16, in bf16, fp16 or fp32; the last dimension contiguous.
        weight: [N, K] of the same dtype; the last dimension contiguous.
        bias: [N], contiguous.
        config: tiles and splits; there are fewer splits if K is too small for them.

    Returns:
        [n, N], contiguous.

    Raises:
        ValueError: shapes, dtypes or strides do not fit.
    """
    rows, inputs = x.shape
    outputs = len(weight)
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"skinny takes 1 to {MOST_ROWS} rows, not {rows}")
    if weight.shape[1] != inputs or x.dtype != weight.dtype or not (x.stride(1) == weight.stride(1) == 1):
        raise ValueError("skinny needs rows and a weight of one dtype and width that are contiguous")
    if bias is not None and (bias.shape != (outputs,) or not bias.is_contiguous()):
        raise ValueError(f"skinny needs a bias of {outputs} that is contiguous")
    # Exact fp32 uses all registers: values held while waiting would be spilled to memory.
    launch = dependent.options(x.device) if x.element_size() == 2 else {"PDL": False}
    span, splits = _spans(inputs, config)
    tiles = triton.cdiv(outputs, config.block_n)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    parts = arrived = out
    if splits > 1:
        parts = _parts(x.device, triton.next_power_of_2(splits * MOST_ROWS * outputs))
        arrived = counters(x.device, weight.data_ptr(), tiles)
    _skinny[(tiles, splits)](
        x, weight, out if bias is None else bias, out, parts, arrived, rows, outputs, inputs,
        inputs if rows == 1 else x.stride(0), weight.stride(0), span,
        BIAS=bias is not None, WHOLE=inputs % config.block_k == 0, SPLITS=splits, ROWS=MOST_ROWS,
        BLOCK_N=config.block_n, BLOCK_K=config.block_k, num_warps=config.warps, num_stages=config.stages,
        LINE=_LINE // x.element_size(), AHEAD=config.stages - 1, **_OPTIONS, **launch,
    )  # fmt: skip
    return out


def _spans(inputs: int, config: Config) -> tuple[int, int]:
    """Return (inputs of a split, number of splits that are not empty)."""
    span = triton.cdiv(triton.cdiv(inputs, config.block_k), config.splits) * config.block_k
    return span, triton.cdiv(inputs, span)


@cache
def _parts(device: torch.device, count: int) -> Tensor:
    """float32 [count] for partial sums; never freed, because captured launches use its address."""
    return torch.empty(count, dtype=torch.float32, device=device)


def configs(outputs: int, inputs: int, dtype: torch.dtype, processors: int) -> list[Config]:
    """Choose a few configurations to measure for a weight [outputs, inputs], the most promising first.

    Args:
        processors: multiprocessors of the GPU.
    """
    left = {
        each: _worth(each, outputs, inputs, dtype, processors)
        for each in _candidates(outputs, inputs, dtype, processors)
    }
    found: list[Config] = []

    def appeal(config: Config) -> float:
        alike = sum(each._replace(splits=0) == config._replace(splits=0) for each in found)
        return left[config] * _ALIKE**alike

    while left and len(found) < _MOST_CONFIGS:
        found.append(max(left, key=appeal))
        del left[found[-1]]
    return found


def _candidates(outputs: int, inputs: int, dtype: torch.dtype, processors: int) -> Iterator[Config]:
    for block_n, wide, warps, stages in _TILES:
        block_k = wide // dtype.itemsize
        for splits in _SPLITS:
            config = Config(block_n, block_k, splits, warps, stages)
            span, used = _spans(inputs, config)
            # A split that does not fill its pipeline mostly waits; allow it only if multiprocessors would be idle.
            few = triton.cdiv(outputs, block_n) * splits <= processors
            if used == splits and (splits == 1 or few or span >= stages * block_k):
                yield config


def _worth(config: Config, outputs: int, inputs: int, dtype: torch.dtype, processors: int) -> float:
    """Estimate the share of a GPU's bandwidth that a configuration may reach, to decide which ones are measured."""
    weights, rows = (each * config.block_k * dtype.itemsize for each in (config.block_n, MOST_ROWS))
    # The stage that is being computed needs no shared memory, and the loads of another one may just have finished.
    fit = max(1, min(_SHARED // ((config.stages - 1) * (weights + rows)), _THREADS // (32 * config.warps)))
    programs = triton.cdiv(outputs, config.block_n) * config.splits
    waves = programs / (processors * fit)
    span, splits = _spans(inputs, config)
    ahead = min(config.stages - 2, span // config.block_k)
    full = min(1.0, min(programs, processors * fit) * ahead * weights / (processors * _IN_FLIGHT))
    last = 1.0 if waves <= 1 else waves / -(-waves // 1)
    padded = triton.cdiv(outputs, config.block_n) * config.block_n * splits * span
    # Traffic through L2 other than the weight, for 16 rows: the rows once per tile, and partial sums written and read.
    other = MOST_ROWS / config.block_n
    if splits > 1:
        other += 2 * splits * MOST_ROWS * 4 / (inputs * dtype.itemsize)
    return full * last * outputs * inputs / padded / (1 + other / 2)
