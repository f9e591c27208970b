"""Choose the next token of each row in one pass over the logits, like ``sampler.scores(...).argmax(-1)``.

The Gumbel noise is computed where it is added, with the hash of :func:`specbench.engine.sampler.gumbel`, so that no
noise table and no float32 copy of the logits is needed. The kernels are compiled without fused multiply-add and use
only IEEE operations: the noise has the same bits on every device, and in the interpreter that the tests use.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # tokens of a tile: one 16-byte load of bf16 for each of 128 threads
# Without fused multiply-add, every operation follows IEEE rounding, as it does in the interpreter.
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
_PROGRAMS_EACH = 4  # programs to launch per multiprocessor: enough loads in flight to saturate memory


class Limits(NamedTuple):
    """Tokens that filters keep in R rows, each divided into pieces of ``span`` tokens.

    Attributes:
        keys: int32 [R]; tokens whose logit has a larger key are kept, tokens with a smaller key are removed.
        shares: int32 [R, pieces]; how many tokens with exactly this key are kept in each piece, from the first one on.
        span: number of tokens in a piece.
    """

    keys: Tensor
    shares: Tensor
    span: int


@triton.jit
def _mix(x):
    """``sampler._mix`` on uint32, whose arithmetic wraps, so that no mask is needed."""
    x = (x ^ (x >> 17)) * 0xED5AD4BB
    x = (x ^ (x >> 11)) * 0xAC4C1B51
    x = (x ^ (x >> 15)) * 0x31848BAB
    return x ^ (x >> 14)


@triton.jit
def _keys(seed, position):
    """The two uint32 keys of a (seed, position). ``seed`` is int64, ``position`` an int."""
    at = position.to(tl.uint32)
    low, high = _mix(seed.to(tl.uint32) ^ 0x9E3779B9), _mix((seed >> 32).to(tl.uint32) ^ 0x85EBCA6B)
    first = _mix(low + at * 0x9E3779B1)
    return first, _mix((high ^ first) + at)


@triton.jit
def _bits(first, second, token):
    """32 random bits for each token id, from the keys of its position."""
    return _mix(_mix(token.to(tl.uint32) + first) ^ second)


@triton.jit
def _exponent(x):
    """k with ``x * 2**-k`` in [2/3, 4/3), for a positive normal float32."""
    return (x.to(tl.int32, bitcast=True) - 0x3F2AAAAB) >> 23


@triton.jit
def _power(k):
    """``2**k`` as float32, built from its bits."""
    return ((k + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _log_of(f, k):
    """``log((1 + f) * 2**k)`` for f in [-1/3, 1/3], within an ulp.

    ``f - f²/2 + f³·q(f)`` with q of degree 7, our own minimax fit (relative error of the result 6e-9, a tenth of the
    rounding error). ln 2 is split into two parts; the first has so few bits that its product with k is exact.
    """
    q = f * -0.12891703844070435 + 0.13984458148479462
    q = q * f - 0.12184257060289383
    q = q * f + 0.14005865156650543
    q = q * f - 0.16680487990379333
    q = q * f + 0.20010405778884888
    q = q * f - 0.24999797344207764
    q = q * f + 0.3333321511745453
    square, turns = f * f, k.to(tl.float32)
    small = q * f * square + turns * -2.1219444e-4 - 0.5 * square
    return f + small + turns * 0.693359375


@triton.jit
def _log(x):
    """Natural logarithm of a positive normal float32."""
    k = _exponent(x)
    return _log_of(x * _power(-k) - 1.0, k)


@triton.jit
def _log1m(u):
    """``log(1 - u)`` for u in [2^-33, 1 - 2^-24].

    The power of two comes from the rounded ``1 - u``, but f is computed from u itself. ``scale * u`` and ``scale - 1``
    are exact, and so is their difference (for scale 1 trivially; for larger scales they are within a factor of two of
    each other, Sterbenz's lemma), so a small u keeps all its bits.
    """
    k = _exponent(1.0 - u)
    scale = _power(-k)
    return _log_of((scale - 1.0) - scale * u, k)


@triton.jit
def _gumbel(bits):
    """Standard Gumbel noise from 32 random bits, with the formula of ``sampler.gumbel``."""
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355224609375)
    return -_log(-_log1m(u))


@triton.jit
def _order(score):
    """int32 keys in the order of float32 scores: -0 equals +0, and NaN is the largest, as in ``torch.argmax``."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the larger a negative float's magnitude, the larger its bits
    return tl.where(score != score, 0x7FFFFFFF, key)


@triton.jit
def _within(key, inside, limit, share, before):
    """Which tokens of a tile are kept, and how many tokens of the piece have the limit's key so far.

    ``before``: the number of such tokens before the tile.
    """
    equal = inside & (key == limit)
    count = before + tl.cumsum(equal.to(tl.int32), 0)
    return inside & (key > limit) | equal & (count <= share), tl.max(count, 0)


@triton.jit(do_not_specialize=["queries", "position_stride"], do_not_specialize_on_alignment=["positions"])
def _best_of_split(
    logits, positions, seed, temperature, limits, shares, partial, vocab, queries, slot_stride, row_stride,
    position_stride, span, GREEDY: tl.constexpr, FILTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (row, split): find the best token among ``span`` ids, as an int64 ordered by score, then by lowest id."""
    row, split = tl.program_id(0), tl.program_id(1)
    slot, query = row // queries, row % queries
    source = logits + slot.to(tl.int64) * slot_stride + query.to(tl.int64) * row_stride
    if not GREEDY:
        first, second = _keys(tl.load(seed), tl.load(positions + slot * position_stride + query))
        divisor = tl.load(temperature)
    if FILTER:
        limit = tl.load(limits + row)
        share = tl.load(shares + row.to(tl.int64) * tl.num_programs(1) + split)
        at_limit = 0
    begin = split * span
    # Less than the key of -inf, so that any token replaces it. A lane sees its ids in ascending order and keeps the
    # first of equal ones.
    best = tl.full([BLOCK], -0x80000000, tl.int32)
    best_token = tl.zeros([BLOCK], tl.int32)
    for start in range(begin, tl.minimum(begin + span, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < vocab  # enough, since a span is whole tiles; comparing with an argument keeps loads vectorised
        score = tl.load(source + token, mask=inside, other=0.0).to(tl.float32)
        if FILTER:
            inside, at_limit = _within(_order(score), inside, limit, share, at_limit)
        if not GREEDY:
            # IEEE division, as in torch; the / operator is approximate.
            score = tl.div_rn(score, divisor) + _gumbel(_bits(first, second, token))
        key = _order(score)
        better = inside & (key > best)
        best = tl.where(better, key, best)
        best_token = tl.where(better, token, best_token)
    packed = (best.to(tl.int64) << 32) | (0x7FFFFFFF - best_token).to(tl.int64)
    tl.store(partial + row.to(tl.int64) * tl.num_programs(1) + split, tl.max(packed, 0))


@triton.jit(do_not_specialize=["splits"])
def _best_of_row(partial, chosen, splits, BLOCK: tl.constexpr):
    """Program (row): find the best token of its splits."""
    row = tl.program_id(0)
    split = tl.arange(0, BLOCK)
    worst = -0x8000000000000000
    packed = tl.load(partial + row.to(tl.int64) * splits + split, mask=split < splits, other=worst)
    tl.store(chosen + row, 0x7FFFFFFF - (tl.max(packed, 0) & 0x7FFFFFFF).to(tl.int32))


def span_of(rows: int, vocab: int, device: torch.device, processors: int | None, most: int | None = None) -> int:
    """Tokens of a piece, for enough pieces per row to fill the multiprocessors, but no more than ``most``."""
    if processors is None:
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type != "cpu" else 1
    tiles = triton.cdiv(vocab, _BLOCK)
    pieces = min(tiles, triton.cdiv(_PROGRAMS_EACH * processors, rows), most or tiles)
    return int(triton.cdiv(tiles, pieces) * _BLOCK)


def most_pieces(vocab: int) -> int:
    """Most pieces of a row, a power of two; independent of the number of rows, so that one compilation serves all."""
    return int(triton.next_power_of_2(triton.cdiv(vocab, _BLOCK)))


def strides_of(logits: Tensor) -> tuple[int, int]:
    """Strides of slots and rows; the slot stride is 0 for a single slot, which does not need it.

    Otherwise, if the vocabulary is not a multiple of 16, another number of rows could cause another compilation.
    """
    return (0 if len(logits) == 1 else logits.stride(0)), logits.stride(1)


def choose(
    logits: Tensor,
    positions: Tensor,
    *,
    seed: Tensor,
    temperature: Tensor,
    greedy: bool,
    limits: Limits | None = None,
    processors: int | None = None,
) -> Tensor:
    """Choose the next token of each row: ``argmax(logits)``, or ``argmax(logits / T + g)`` when sampling.

    Among equal maxima the lowest id wins. NaN counts as the largest value, as in ``torch.argmax``: the result is always
    an id in the vocabulary, and it is the same in every backend even for a row with NaN.

    Args:
        logits: [S, Q, V] in bf16, fp16 or fp32; only the last dimension has to be contiguous.
        positions: int64 or int32 [S, Q], the position that the chosen token will have; last dimension contiguous.
        seed: int64 [1] on the device, below 2^63; not read when greedy.
        temperature: float32 [1] on the device, above 0; not read when greedy.
        greedy: whether to choose without noise.
        limits: limits of the S * Q rows; tokens that they remove are not chosen.
        processors: multiprocessors to fill; default is all of the device. With limits, their pieces are used.

    Returns:
        int32 [S, Q].

    Raises:
        ValueError: a row of logits or positions is not contiguous.
    """
    if logits.stride(-1) != 1 or positions.stride(-1) != 1:
        raise ValueError("choose needs logits and positions that are contiguous in their last dimension")
    slots, queries, vocab = logits.shape
    rows = slots * queries
    span = limits.span if limits else span_of(rows, vocab, logits.device, processors)
    splits = triton.cdiv(vocab, span)
    partial = torch.empty(rows, splits, dtype=torch.int64, device=logits.device)
    chosen = torch.empty(slots, queries, dtype=torch.int32, device=logits.device)
    _best_of_split[(rows, splits)](
        logits, positions, seed, temperature, limits and limits.keys, limits and limits.shares, partial, vocab, queries,
        *strides_of(logits), positions.stride(0), span,
        GREEDY=greedy, FILTER=limits is not None, BLOCK=_BLOCK, **_OPTIONS,
    )  # fmt: skip
    _best_of_row[(rows,)](partial, chosen, splits, BLOCK=most_pieces(vocab), num_warps=1, enable_fp_fusion=True)
    return chosen
