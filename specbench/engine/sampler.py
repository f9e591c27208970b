"""The target's next token: greedy, or exact sampling with position-keyed Gumbel noise (DESIGN §2).

``argmax(logits / T + g)`` with standard Gumbel ``g`` is an exact draw from ``softmax(logits / T)``: the Gumbel-max
trick (Maddison et al., 2014, §2). Here ``g`` is a pure function of (seed, absolute position, token id), so every
lossless decoder emits, token for token, what autoregressive decoding emits with that seed.

What is drawn otherwise, drafts with probabilities and their verification (:mod:`.block_verification`), is drawn by
:func:`uniforms` of streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.common import temperature_fault

_MASK = 0xFFFFFFFF
_NAN = 0x7FFFFFFF  # its key, above all others
_LEAST = -32.0  # a score so far below the largest weighs nothing


class Stream(Enum):
    """What uniform numbers are for: a key constant for each, so that no two of them share a number."""

    DRAFT = 0x3C6EF372
    VERIFY = 0xA54FF53A


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 is greedy; otherwise the logits are divided by it, in float32.
        top_k: keep the k most probable tokens (ties with the k-th stay); 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches it; 1 keeps all.
        seed: key of the noise; unused when greedy.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if fault := temperature_fault(self.temperature):
            raise ValueError(fault)
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be in (0, 1], not {self.top_p}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), not {self.seed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_k > 0 or self.top_p < 1


def _mix(x: Any) -> Any:
    """A bijective 32-bit finaliser (xor-shift-multiply, 3 rounds) on int64 tensors or arrays that hold 32-bit values.

    The products wrap, which leaves their low 32 bits as they are.
    """
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) & _MASK
    x = ((x ^ (x >> 11)) * 0xAC4C1B51) & _MASK
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _MASK
    return x ^ (x >> 14)


def gumbel(seed: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise as a function of (seed, position, token id): no state, no order, the same on any device.

    ``seed``: int64 [S, 1], below 2^63; ``positions``: int64 [S, Q], absolute positions of the tokens that are chosen.
    Returns float32 [S, Q, V].
    """
    token = torch.arange(vocab, device=positions.device, dtype=torch.int64)
    bits = _bits(seed & _MASK, seed >> 32, positions, token)
    # u near 0 gives the large values that decide an argmax, and float32 resolves it there to 2^-33; u near 1 is
    # clamped below 1, which only bounds how unlikely a token can be made.
    u = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def _bits(low: Any, high: Any, positions: Any, numbers: Any) -> Any:
    """32 random bits [S, Q, n] of each of ``numbers`` [n] at ``positions`` [S, Q], keyed by seeds.

    Tensors or arrays of int64; ``low`` and ``high`` [S, 1] are the halves of the seeds.
    """
    # Two independent 32-bit keys per (seed, position); the first shifts the number's counter, the second is folded in
    # between two mixing rounds, so that streams of neighbouring positions do not overlap.
    low, high = _mix(low ^ 0x9E3779B9), _mix(high ^ 0x85EBCA6B)
    first = _mix((low + positions * 0x9E3779B1) & _MASK)
    second = _mix((high ^ first) + positions & _MASK)
    return _mix(_mix((numbers + first[..., None]) & _MASK) ^ second[..., None])


def uniforms(seed: int, stream: Stream, starts: Sequence[int], count: int, first: int = 0) -> Tensor:
    """Uniform numbers as a function of (seed, stream, start of a block, place in it): no state, the same anywhere.

    The start is part of the key, and not only the position that a place has in the text. A block that is verified as a
    whole ends where all of its drafts and numbers together say so; those after that end have been looked at, and used
    once more for the same position, in the next block, they would no longer be independent of the text before it.

    ``starts``: positions of the S blocks' roots. Returns float64 [S, count] above 0 and below 1, on the CPU.
    """
    start, place = np.array(starts, dtype=np.int64)[:, None], np.arange(first, first + count, dtype=np.int64)[None]
    halves = [_mix(np.array([[half ^ stream.value]])) for half in (seed & _MASK, seed >> 32)]
    # A key of 64 bits for each (seed, start): one half alone would be the same for some of a few thousand texts.
    low = _mix((halves[0] + start * 0x9E3779B1) & _MASK)
    high = _mix((halves[1] + start & _MASK) ^ low)
    words = _bits(low, high, place, np.arange(2, dtype=np.int64))
    found = np.ldexp(words[..., 0] + np.ldexp(words[..., 1] + 0.5, -32), -32)
    return torch.from_numpy(found.clip(max=1 - 2.0**-40))  # far enough below 1 that a product with a sum is below it


def drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    """Tokens drawn by weight, by inversion of the cumulative sum.

    ``weights``: [..., V], not negative; ``numbers``: float64 [...], uniform in (0, 1). Returns int64 [...]; where all
    weights are 0 the last token.
    """
    reached = weights.cumsum(-1, dtype=torch.float64)
    wanted = reached[..., -1:] * numbers[..., None]
    # The first that exceeds it has a weight of its own, or would not exceed.
    return torch.searchsorted(reached, wanted, right=True)[..., 0].clamp_(max=weights.shape[-1] - 1)


@lru_cache(maxsize=256)  # 50 MB at 50k tokens
def _cpu_row(seed: int, position: int, vocab: int) -> Tensor:
    """:func:`gumbel` of one position, kept: rows of a tree share positions, and so do one step's tree and the next's.

    Only for CPUs, where the hash costs more than the forward of a small model; a device computes it again.
    """
    whole: Any = {"dtype": torch.int64, "device": "cpu"}
    return gumbel(torch.tensor([[seed]], **whole), torch.tensor([[position]], **whole), vocab)[0, 0]


def _noise(seed: int, positions: Tensor, vocab: int) -> Tensor:
    """:func:`gumbel` of all positions [S, Q] at once, of any integer type: packed steps have them in 32 bits."""
    positions = positions.long()  # in 32 bits the hash would wrap into other noise than AR's, and not hold every seed
    return gumbel(torch.full_like(positions[:, :1], seed), positions, vocab)


def _over(values: Tensor, temperature: float) -> Tensor:
    """float32 ``values`` over the temperature, rounded as IEEE says: CUDA multiplies by the inverse of a number."""
    return values / values.new_full((), temperature)


def _order(values: Tensor) -> Tensor:
    """int32 keys in the order of float32 values: -0 equals +0, and NaN is above all others, as in ``argmax``."""
    bits = (values + 0.0).view(torch.int32)
    keys = bits ^ ((bits >> 31) & _NAN)  # the larger a negative float's magnitude, the larger its bits
    return keys.masked_fill_(values.isnan(), _NAN)


def _descending(keys: Tensor) -> Tensor:
    """int32 keys [R, V], from the largest of each row on."""
    if keys.device.type != "cpu":
        return keys.sort(dim=-1, descending=True).values
    return ~torch.from_numpy(np.sort((~keys).numpy()))  # ten times as fast as torch's


def _masses(scores: Tensor, largest: Tensor) -> Tensor:
    """What tokens weigh in top-p: int64 ``exp(score - largest)`` with 40 fractional bits, rounded down.

    Made of float32 operations that round as IEEE says, and of integers, so that the bits are alike on any device. Sums
    of up to 2^22 of them fit. ``2**turns * exp(rest)`` with rest in ±ln 2 / 2 and ``exp(r) = 1 + r + r² q(r)``, q of
    degree 4, a minimax fit of ours: relative error 4e-9, of the whole 9e-8 and a last bit.

    The largest weighs 2^40, infinite and NaN too, and with it all that equal it. Others weigh nothing beside such.

    ``scores``: float32 [R, V]; ``largest``: [R, 1], NaN if one of the row is NaN.
    """
    gap = (scores - largest).clamp_(min=_LEAST).nan_to_num_(nan=_LEAST)
    gap.masked_fill_((scores == largest) | scores.isnan(), 0.0)
    turns = (gap * 1.44269504) + 12582912.0 - 12582912.0  # to the nearest integer
    gap -= turns * 0.693359375  # ln 2 in two parts, the first short enough that its product is exact
    gap += turns * 2.1219444e-4
    poly = gap * 0.0013814539415761828
    for part in (0.00836874544620514, 0.04166838899254799, 0.1666652113199234):
        poly = poly.add_(part).mul_(gap)
    poly = poly.add_(0.4999999403953552).mul_(gap.square()).add_(gap).add_(1.0)
    return poly.mul_(2.0**24).long().bitwise_left_shift_(16).bitwise_right_shift_(turns.neg_().long())


def _outside(logits: Tensor, sampling: Sampling) -> Tensor:
    """Which tokens top-k, and top-p among those that it leaves, do without.

    Tokens are in the order of their logits, equal ones in that of their ids. In top-k all that equal the k-th stay, and
    all there are where it is NaN. In top-p a token goes when those before it weigh ``ceil(top_p * sum)`` together, in
    float64 and above 0, or more. Weights are integers (:func:`_masses`), so that no sum depends on its order: whoever
    searches for the cut (:mod:`specbench.engine.kernels.filters`) finds the one that sorting finds.

    ``logits``: float32 [R, V]. Returns bool [R, V].
    """
    top_k = min(sampling.top_k, logits.shape[-1])
    if sampling.top_p == 1:
        return logits < logits.topk(top_k, dim=-1).values[:, -1:]
    keys = _order(logits)
    ordered = keys.topk(top_k, dim=-1).values if top_k else _descending(keys)
    scores = _over((ordered ^ ((ordered >> 31) & _NAN)).view(torch.float32), sampling.temperature)
    masses = _masses(scores, scores[:, :1])
    reached = masses.cumsum(-1)
    total = reached[:, -1:]
    if top_k:  # those that equal the k-th and are not among the k
        kth = ordered[:, -1:]
        total = total + masses[:, -1:] * ((keys == kth).sum(-1, True) - (ordered == kth).sum(-1, True))
    wanted = (total.double() * sampling.top_p).ceil_().long().clamp_(min=1).minimum(total)
    last = torch.searchsorted(reached, wanted).clamp_(max=ordered.shape[-1] - 1)
    limit, mass = ordered.gather(-1, last), masses.gather(-1, last)
    above = (masses * (ordered > limit)).sum(-1, keepdim=True)
    spare = torch.div(wanted - above + mass - 1, mass, rounding_mode="floor")  # of those at the limit so many stay
    equal = keys == limit
    return (keys < limit) | (equal & (equal.cumsum(-1) > spare))


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [S, Q, V] over the temperature, -inf for tokens left out, float32: their softmax is what is drawn from.

    Of greedy sampling the logits themselves.
    """
    if sampling.greedy:
        return logits
    values = logits.float()
    found = _over(values, sampling.temperature)
    if sampling.filters:
        vocab = values.shape[-1]
        found.view(-1, vocab).masked_fill_(_outside(values.reshape(-1, vocab), sampling), -torch.inf)
    return found


def perturbed(kept: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
    """The noise of each position added to what :func:`filtered` made, in place; greedy there is none."""
    if sampling.greedy:
        return kept
    vocab = kept.shape[-1]
    if kept.device.type == "cpu":
        for row, position in zip(kept.view(-1, vocab), positions.flatten().tolist(), strict=True):
            row += _cpu_row(sampling.seed, position, vocab)
        return kept
    return kept.add_(_noise(sampling.seed, positions, vocab))


def scores(logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
    """What the next token is the argmax of.

    ``logits``: [S, Q, V]; ``positions``: [S, Q], the position the chosen token will have (one after its row). Returns
    the logits themselves when greedy, else float32 perturbed logits.
    """
    return perturbed(filtered(logits, sampling), positions, sampling)
