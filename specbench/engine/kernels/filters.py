"""Top-k and top-p with a search instead of sorting, with the same cut as :mod:`specbench.engine.sampler`.

The key of the cut is found digit by digit, in a few launches over the logits. Each launch considers, per row, the
tokens whose keys start with the digits found so far, and adds up their weights by their next digit. Weights are 1 for
top-k and integer masses for top-p. Integer sums do not depend on their order, so pieces of a row are added up
separately, without atomics, and the cut is exact. Among tokens with exactly the key of the cut, those with the lowest
ids are kept; all of them weigh the same, so the last sums give their number in each piece.

Nothing is read on the host, and k, p and the temperature are on the device: one graph serves all their values.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels.sample import Limits, _order, _within, most_pieces, span_of, strides_of

_BLOCK = 512  # tokens of a tile; 16 sums of 64 bits per token are in registers
# Without fused multiply-add, every operation follows IEEE rounding, as it does in the interpreter.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
_SETTLE = {"num_warps": 4, "enable_fp_fusion": False}
_MOST_PIECES = 256  # most pieces of a row: every program of a launch reads the sums of all pieces of its row
#: Number of leading 4-bit digits in which keys of logits can differ.
_DIGITS = {torch.bfloat16: 4, torch.float16: 5, torch.float32: 8}


@triton.jit
def _value(key):
    """The float32 of a key: the inverse of ``_order``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _mass(score, largest):
    """``sampler._masses``: int64, ``exp(score - largest)`` with 40 fractional bits."""
    gap = score - largest
    gap = tl.where(gap > -32.0, gap, -32.0)  # also replaces NaN
    gap = tl.where((score == largest) | (score != score), 0.0, gap)
    turns = (gap * 1.44269504 + 12582912.0) - 12582912.0
    rest = gap - turns * 0.693359375
    rest = rest + turns * 2.1219444e-4
    poly = rest * 0.0013814539415761828
    poly = (poly + 0.00836874544620514) * rest
    poly = (poly + 0.04166838899254799) * rest
    poly = (poly + 0.1666652113199234) * rest
    poly = (poly + 0.4999999403953552) * (rest * rest) + rest + 1.0
    return ((poly * 16777216.0).to(tl.int64) << 16) >> (0.0 - turns).to(tl.int64)


@triton.jit
def _largest(maxima, row, pieces, PIECES: tl.constexpr):
    """Largest key of a row."""
    piece = tl.arange(0, PIECES)
    return tl.max(tl.load(maxima + row.to(tl.int64) * pieces + piece, mask=piece < pieces, other=-0x80000000), 0)


@triton.jit
def _found(sums, state, wanted, row, pieces, FIRST: tl.constexpr, MASS: tl.constexpr, PIECES: tl.constexpr):
    """Find the next digit from the sums of a launch; return (digits so far, weight still wanted of them), both int64.

    The next digit is the largest one for which the tokens with this or a larger digit have the wanted weight. After the
    first launch, the wanted weight is computed from the total, with the formula of ``sampler._outside``.
    """
    piece, digit = tl.arange(0, PIECES)[:, None], tl.arange(0, 16)
    at = sums + (row.to(tl.int64) * pieces + piece) * 16 + digit[None, :]
    weighs = tl.sum(tl.load(at, mask=piece < pieces, other=0), 0)
    if FIRST:
        total = tl.sum(weighs, 0)
        if MASS:
            share = tl.load(wanted).to(tl.float64, bitcast=True)
            left = tl.maximum(tl.ceil(total.to(tl.float64) * share).to(tl.int64), 1)
        else:
            left = tl.load(wanted)
        left = tl.minimum(left, total)
        digits = left * 0
    else:
        digits, left = tl.load(state + row * 2), tl.load(state + row * 2 + 1)
    reach = tl.sum(tl.where(digit[:, None] >= digit[None, :], weighs[:, None], 0), 0)
    found = tl.sum((reach >= left).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(digit > found, weighs, 0), 0)
    return digits * 16 + found, left - above


@triton.jit(do_not_specialize=["queries"])
def _largest_of_piece(logits, maxima, vocab, queries, slot_stride, row_stride, span, BLOCK: tl.constexpr):
    """Program (row, piece): find the largest key."""
    row, piece = tl.program_id(0), tl.program_id(1)
    source = logits + (row // queries).to(tl.int64) * slot_stride + (row % queries).to(tl.int64) * row_stride
    most = tl.full([BLOCK], -0x80000000, tl.int32)
    for start in range(piece * span, tl.minimum(piece * span + span, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < vocab
        key = _order(tl.load(source + token, mask=inside, other=0.0).to(tl.float32))
        most = tl.maximum(most, tl.where(inside, key, -0x80000000))
    tl.store(maxima + row.to(tl.int64) * tl.num_programs(1) + piece, tl.max(most, 0))


@triton.jit(do_not_specialize=["queries", "shift"])
def _weigh(
    logits, temperature, maxima, floor, wanted, last_sums, last_state, sums, state, vocab, queries, slot_stride,
    row_stride, span, shift,
    LAUNCH: tl.constexpr, MASS: tl.constexpr, FLOOR: tl.constexpr, PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (row, piece): add up the weights of the piece's tokens by the digit at ``shift`` of their keys.

    Only tokens with the digits found so far count. ``LAUNCH``: 0, 1, or 2 for all later launches. ``FLOOR``: whether
    tokens whose keys are less than the row's ``floor`` weigh 0.
    """
    row, piece, pieces = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    source = logits + (row // queries).to(tl.int64) * slot_stride + (row % queries).to(tl.int64) * row_stride
    if LAUNCH > 0:
        digits, left = _found(last_sums, last_state, wanted, row, pieces, LAUNCH == 1, MASS, PIECES)
        if piece == 0:
            tl.store(state + row * 2, digits)
            tl.store(state + row * 2 + 1, left)
    if MASS:
        divisor = tl.load(temperature)
        largest = tl.div_rn(_value(_largest(maxima, row, pieces, PIECES)), divisor)
    if FLOOR:
        least = tl.load(floor + row)
    digit = tl.arange(0, 16)
    total = tl.zeros([16, BLOCK], tl.int64)
    for start in range(piece * span, tl.minimum(piece * span + span, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        weighed = token < vocab
        value = tl.load(source + token, mask=weighed, other=float("-inf")).to(tl.float32)
        key = _order(value)
        place = key.to(tl.uint32, bitcast=True) ^ 0x80000000  # as unsigned numbers keys begin at 0
        if FLOOR:
            weighed = weighed & (key >= least)
        if LAUNCH > 0:
            weighed = weighed & ((place >> (shift + 4)).to(tl.int64) == digits)
        its = ((place >> shift) & 15).to(tl.int32)
        # After the first digits, most tiles have no token that counts.
        if tl.max(weighed.to(tl.int32), 0) > 0:
            among = weighed[None, :] & (its[None, :] == digit[:, None])
            if MASS:
                total += tl.where(among, _mass(tl.div_rn(value, divisor), largest)[None, :], 0)
            else:
                total += among.to(tl.int64)
    tl.store(sums + (row.to(tl.int64) * pieces + piece) * 16 + digit, tl.sum(total, 1))


@triton.jit(do_not_specialize=["pieces", "shift"])
def _settle(
    temperature, maxima, wanted, last_sums, last_state, limits, shares, pieces, shift,
    MASS: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Program (row): find the key of its cut, and how many tokens with this key are kept in each piece."""
    row, piece = tl.program_id(0), tl.arange(0, PIECES)
    digits, left = _found(last_sums, last_state, wanted, row, pieces, False, MASS, PIECES)
    # Bits that were not searched are 0 in keys of positive numbers, and 1 in keys of negative numbers and of NaN.
    rest = (1 << shift) - 1
    place = digits << shift
    place = tl.where((place < 0x80000000) | (place + rest == 0xFFFFFFFF), place + rest, place)
    key = (place - 0x80000000).to(tl.int32)
    stay = tl.full([PIECES], 0x7FFFFFFF, tl.int32)
    if MASS:
        divisor = tl.load(temperature)
        largest = tl.div_rn(_value(_largest(maxima, row, pieces, PIECES)), divisor)
        mass = _mass(tl.div_rn(_value(key), divisor), largest)
        at = last_sums + (row.to(tl.int64) * pieces + piece) * 16 + (digits & 15)
        count = tl.load(at, mask=piece < pieces, other=0) // mass
        before = tl.cumsum(count, 0) - count
        stay = tl.minimum(tl.maximum((left + mass - 1) // mass - before, 0), 0x7FFFFFFF).to(tl.int32)
    else:
        key = tl.where(key == 0x7FFFFFFF, -0x80000000, key)  # if the k-th is NaN, all tokens are kept
    tl.store(limits + row, key)
    tl.store(shares + row.to(tl.int64) * pieces + piece, stay, mask=piece < pieces)


@triton.jit(do_not_specialize=["queries"])
def _keep(
    logits, temperature, limits, shares, kept, vocab, queries, slot_stride, row_stride, span, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (row, piece): divide logits by the temperature; -inf for tokens outside the limits."""
    row, piece = tl.program_id(0), tl.program_id(1)
    source = logits + (row // queries).to(tl.int64) * slot_stride + (row % queries).to(tl.int64) * row_stride
    limit, divisor, at_limit = tl.load(limits + row), tl.load(temperature), 0
    share = tl.load(shares + row.to(tl.int64) * tl.num_programs(1) + piece)
    for start in range(piece * span, tl.minimum(piece * span + span, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < vocab
        value = tl.load(source + token, mask=inside, other=0.0).to(tl.float32)
        stays, at_limit = _within(_order(value), inside, limit, share, at_limit)
        score = tl.where(stays, tl.div_rn(value, divisor), float("-inf"))
        tl.store(kept + row.to(tl.int64) * vocab + token, score, mask=inside)


def limits_of(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    processors: int | None = None,
) -> Limits:
    """Find the limits of the tokens to keep in each row; ``sampler.filtered`` keeps the same tokens.

    Args:
        logits: [S, Q, V] in bf16, fp16 or fp32; only the last dimension has to be contiguous.
        temperature: float32 [1] on the device, above 0.
        top_k: int64 [1], 1 or more.
        top_p: float64 [1], above 0 and below 1.
        processors: multiprocessors to fill; default is all of the device.

    Raises:
        ValueError: no filter is given, or a row of logits is not contiguous.
    """
    if logits.stride(-1) != 1:
        raise ValueError("limits_of needs logits that are contiguous in their last dimension")
    slots, queries, vocab = logits.shape
    rows, device = slots * queries, logits.device
    span = span_of(rows, vocab, device, processors, _MOST_PIECES)
    pieces = triton.cdiv(vocab, span)
    grid, wide, strides = (rows, pieces), min(most_pieces(vocab), _MOST_PIECES), strides_of(logits)
    digits = _DIGITS[logits.dtype]
    limits: Limits | None = None
    maxima = None
    if top_p is not None:
        maxima = torch.empty(rows, pieces, dtype=torch.int32, device=device)
        _largest_of_piece[grid](logits, maxima, vocab, queries, *strides, span, BLOCK=_BLOCK, **_OPTIONS)
    for wanted, mass in ((top_k, False), (None if top_p is None else top_p.view(torch.int64), True)):
        if wanted is None:
            continue
        # Separate memory for each launch, since its programs read the sums of the previous launch.
        sums = torch.empty(digits, rows, pieces, 16, dtype=torch.int64, device=device)
        states = torch.empty(digits, rows, 2, dtype=torch.int64, device=device)
        floor = limits and limits.keys
        for at in range(digits):
            last = max(at - 1, 0)
            _weigh[grid](
                logits, temperature, maxima if mass else None, floor, wanted, sums[last], states[last], sums[at],
                states[at], vocab, queries, *strides, span, 28 - 4 * at,
                LAUNCH=min(at, 2), MASS=mass, FLOOR=floor is not None, PIECES=wide, BLOCK=_BLOCK, **_OPTIONS,
            )  # fmt: skip
        keys = torch.empty(rows, dtype=torch.int32, device=device)
        shares = torch.empty(rows, pieces, dtype=torch.int32, device=device)
        _settle[(rows,)](
            temperature, maxima if mass else None, wanted, sums[-1], states[-1], keys, shares, pieces,
            32 - 4 * digits, MASS=mass, PIECES=wide, **_SETTLE,
        )  # fmt: skip
        limits = Limits(keys, shares, span)
    if limits is None:
        raise ValueError("limits_of needs a filter")
    return limits


def keep(logits: Tensor, limits: Limits, *, temperature: Tensor) -> Tensor:
    """``sampler.filtered``: float32 [S, Q, V], logits divided by the temperature, -inf for tokens outside limits."""
    slots, queries, vocab = logits.shape
    kept = torch.empty(slots, queries, vocab, dtype=torch.float32, device=logits.device)
    _keep[(slots * queries, limits.shares.shape[1])](
        logits, temperature, limits.keys, limits.shares, kept, vocab, queries, *strides_of(logits), limits.span,
        BLOCK=_BLOCK, **_OPTIONS,
    )  # fmt: skip
    return kept
