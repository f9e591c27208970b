"""Find the best tokens of each row of a draft head's scores, with their log-probabilities, in one launch.

A program works on a tile of a row, and stores the tile's best tokens and its sum of exponentials. The last program of a
row to finish joins the tiles in a fixed order: a row's result does not depend on other rows and is reproducible.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels.dependent import counters
from specbench.engine.kernels.filters import _value
from specbench.engine.kernels.sample import _order

MOST = 16  # most tokens to find per row: the program that joins holds this many of every tile
_BLOCK = 1024  # tokens of a tile
_TILES = 256  # most tiles of a row
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
_NONE = tl.constexpr(-0x8000000000000000)


@triton.jit
def _weight(score, largest):
    """``exp(score - largest)``, 1 if both are the same infinity."""
    return tl.exp(tl.where(score == largest, 0.0, score - largest))


@triton.jit
def _best(
    scores, logp, tokens, tops, maxima, sums, arrived, vocab, row_stride,
    K: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (row, tile). Each token is an int64 ordered by score, then by lowest id."""
    row, tile, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    token, place = tile * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = token < vocab
    score = tl.load(scores + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    packed = (_order(score).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
    packed = tl.where(inside, packed, _NONE)
    best = tl.full([WIDE], _NONE, tl.int64)
    for at in range(K):
        top = tl.max(packed, 0)
        best = tl.where(place == at, top, best)
        packed = tl.where(packed == top, _NONE, packed)
    largest = tl.max(score, 0)
    at_tile = row * tiles + tile
    tl.store(tops + at_tile * WIDE + place, best)
    tl.store(maxima + at_tile, largest)
    tl.store(sums + at_tile, tl.sum(tl.where(inside, _weight(score, largest), 0.0), 0))
    tl.debug_barrier()  # all threads must have stored before one of them increments the counter
    if tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu") < tiles - 1:
        return
    # From L2, where the results of other programs are.
    every = tl.arange(0, TILES)
    highest = tl.load(maxima + row * tiles + every, mask=every < tiles, other=float("-inf"), cache_modifier=".cg")
    each = tl.load(sums + row * tiles + every, mask=every < tiles, other=0.0, cache_modifier=".cg")
    largest = tl.max(highest, 0)
    total = largest + tl.log(tl.sum(each * _weight(highest, largest), 0))
    left = tl.arange(0, TILES * WIDE)
    of_row = tops + row * tiles * WIDE + left
    packed = tl.load(of_row, mask=left < tiles * WIDE, other=_NONE, cache_modifier=".cg")
    for at in range(K):
        top = tl.max(packed, 0)
        packed = tl.where(packed == top, _NONE, packed)
        tl.store(tokens + row * K + at, 0x7FFFFFFF - (top & 0x7FFFFFFF))
        tl.store(logp + row * K + at, _value((top >> 32).to(tl.int32)) - total)
    tl.store(arrived + row, 0)


def takes(scores: Tensor, count: int) -> bool:
    """Whether the kernel supports these scores and this number of tokens per row."""
    small = scores.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return small and count <= min(MOST, scores.shape[-1]) and scores.shape[-1] <= _BLOCK * _TILES


def best(scores: Tensor, count: int, site: int) -> tuple[Tensor, Tensor]:
    """Find the tokens with the largest scores, in order; equal scores by lowest id. NaN is the largest score.

    Args:
        scores: [..., V] in bf16, fp16 or fp32, for which :func:`takes` is true.
        count: K, tokens per row.
        site: address that identifies this launch site among all sites that may run at the same time.

    Returns:
        (log-probabilities float32 [..., K] over all V tokens, tokens int64 [..., K]).
    """
    flat = scores.flatten(0, -2)
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    (rows, vocab), device = flat.shape, scores.device
    tiles, wide = triton.cdiv(vocab, _BLOCK), triton.next_power_of_2(count)
    tops = torch.empty(rows, tiles, wide, dtype=torch.int64, device=device)
    maxima, sums = (torch.empty(rows, tiles, dtype=torch.float32, device=device) for _ in range(2))
    logp = torch.empty(*scores.shape[:-1], count, dtype=torch.float32, device=device)
    tokens = torch.empty(*scores.shape[:-1], count, dtype=torch.int64, device=device)
    _best[(rows, tiles)](
        flat, logp, tokens, tops, maxima, sums, counters(device, site, triton.next_power_of_2(rows)), vocab,
        flat.stride(0), K=count, WIDE=wide, TILES=triton.next_power_of_2(tiles), BLOCK=_BLOCK, **_OPTIONS,
    )  # fmt: skip
    return logp, tokens
