"""Choose the target's next token: greedily, or by exact sampling with position-keyed Gumbel noise.

``argmax(logits / T + g)`` with standard Gumbel ``g`` is an exact sample from ``softmax(logits / T)``: the Gumbel-max
trick (Maddison et al., 2014, §2). Here ``g`` is a pure function of (seed, absolute position, token id), so every
lossless decoder emits, token for token, what autoregressive decoding emits with that seed.

Sampling of drafts and their block verification (:mod:`.block_verification`) use :func:`uniforms` from separate streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.common import temperature_fault
from specbench.engine.logits.grammar import Grammar

_MASK = 0xFFFFFFFF
_NAN = 0x7FFFFFFF  # key of NaN, greater than all other keys
_LEAST = -32.0  # a score this far below the largest gets weight 0


class Stream(Enum):
    """Purposes of uniform random numbers, each with a key constant, so that their numbers are independent."""

    DRAFT = 0x3C6EF372
    VERIFY = 0xA54FF53A


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of the next token.

    Attributes:
        temperature: 0 is greedy; otherwise the logits are divided by it, in float32.
        top_k: keep the k most probable tokens (ties with the k-th stay); 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches it; 1 keeps all.
        seed: key of the noise; unused when greedy.
        min_p: keep the tokens whose probability is at least this share of the most probable token's; 0 keeps all.
        repetition_penalty: divides positive logits of tokens in prompt and output, and multiplies negative ones.
        presence_penalty: subtracted from the logits of tokens in the output.
        frequency_penalty: subtracted once for each time that a token is in the output.
        logit_bias: (token id, value added to its logit).
        grammar: forbids tokens that the output cannot continue with.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if fault := temperature_fault(self.temperature):
            raise ValueError(fault)
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be in (0, 1], not {self.top_p}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), not {self.seed}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min-p must be in [0, 1], not {self.min_p}")
        if not 0.01 <= self.repetition_penalty <= 100:  # float32 would make 0 of a tiny one, and 0 times -inf is NaN
            raise ValueError(f"repetition-penalty must be in [0.01, 100], not {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Whether top-k or top-p is on."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def penalises(self) -> bool:
        """Whether the logits of a row depend on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def needs_text(self) -> bool:
        """Whether tokens before a row decide how its logits are processed."""
        return self.penalises or self.grammar is not None

    @property
    def processes(self) -> bool:
        """Whether logits are changed before temperature, top-k and top-p (:mod:`.logits.processors`)."""
        return self.needs_text or bool(self.logit_bias) or (self.min_p > 0 and not self.greedy)

    @property
    def of_drafts(self) -> Sampling:
        """Parameters of a draft model, whose drafts the target verifies: without penalties, logit bias and grammar."""
        plain = Sampling()
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "grammar")
        return replace(self, **{name: getattr(plain, name) for name in names})


def _mix(x: Any) -> Any:
    """A bijective 32-bit finaliser (xor-shift-multiply, 3 rounds) on int64 tensors or arrays that hold 32-bit values.

    The 64-bit products may overflow; their low 32 bits are right all the same.
    """
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) & _MASK
    x = ((x ^ (x >> 11)) * 0xAC4C1B51) & _MASK
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _MASK
    return x ^ (x >> 14)


def gumbel(seed: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise as a function of (seed, position, token id): no state, no order, the same on any device.

    ``seed``: int64 [S, 1], below 2^63; ``positions``: int64 [S, Q], absolute positions of the tokens to choose.
    Returns float32 [S, Q, V].
    """
    token = torch.arange(vocab, device=positions.device, dtype=torch.int64)
    bits = _bits(seed & _MASK, seed >> 32, positions, token)
    # Small u gives the large values that decide an argmax, and there float32 resolves u to 2^-33; u near 1 is clamped
    # below 1, which only limits how strongly noise can lower a score.
    u = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def _bits(low: Any, high: Any, positions: Any, numbers: Any) -> Any:
    """32 random bits [S, Q, n] for each counter in ``numbers`` [n] at each of ``positions`` [S, Q], keyed by seeds.

    Tensors or arrays of int64; ``low`` and ``high`` [S, 1] are the halves of the seeds.
    """
    # Two independent 32-bit keys per (seed, position); the first is added to the counter, the second is mixed in
    # between two mixing rounds, so that streams of adjacent positions do not overlap.
    low, high = _mix(low ^ 0x9E3779B9), _mix(high ^ 0x85EBCA6B)
    first = _mix((low + positions * 0x9E3779B1) & _MASK)
    second = _mix((high ^ first) + positions & _MASK)
    return _mix(_mix((numbers + first[..., None]) & _MASK) ^ second[..., None])


def uniforms(seed: int, stream: Stream, starts: Sequence[int], count: int, first: int = 0) -> Tensor:
    """Uniform numbers as a function of (seed, stream, start of a block, index in it): no state, the same everywhere.

    The key contains the block's start, not only the text position of the number. Where a block ends depends on all its
    drafts and numbers together, those after its end included. If the next block used these numbers again for the same
    positions, they would not be independent of the text before them.

    ``starts``: positions of the S blocks' roots. Returns float64 [S, count] above 0 and below 1, on the CPU.
    """
    start, place = np.array(starts, dtype=np.int64)[:, None], np.arange(first, first + count, dtype=np.int64)[None]
    halves = [_mix(np.array([[half ^ stream.value]])) for half in (seed & _MASK, seed >> 32)]
    # A 64-bit key for each (seed, start): with 32 bits some of a few thousand texts would share a key.
    low = _mix((halves[0] + start * 0x9E3779B1) & _MASK)
    high = _mix((halves[1] + start & _MASK) ^ low)
    words = _bits(low, high, place, np.arange(2, dtype=np.int64))
    found = np.ldexp(words[..., 0] + np.ldexp(words[..., 1] + 0.5, -32), -32)
    return torch.from_numpy(found.clip(max=1 - 2.0**-40))  # far enough below 1 that a product with a sum is below it


def drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    """Sample tokens in proportion to their weights, by inversion of the cumulative sum.

    ``weights``: [..., V], not negative; ``numbers``: float64 [...], uniform in (0, 1). Returns int64 [...]; the last
    token if all weights are 0.
    """
    reached = weights.cumsum(-1, dtype=torch.float64)
    wanted = reached[..., -1:] * numbers[..., None]
    # The first sum above the wanted one belongs to a token with a positive weight.
    return torch.searchsorted(reached, wanted, right=True)[..., 0].clamp_(max=weights.shape[-1] - 1)


@lru_cache(maxsize=256)  # 50 MB at 50k tokens
def _cpu_row(seed: int, position: int, vocab: int) -> Tensor:
    """Cached :func:`gumbel` of one position: the rows of a tree, and the trees of successive steps, share positions.

    Only for CPUs, where the hash costs more than the forward of a small model; a GPU computes it each time.
    """
    whole: Any = {"dtype": torch.int64, "device": "cpu"}
    return gumbel(torch.tensor([[seed]], **whole), torch.tensor([[position]], **whole), vocab)[0, 0]


def _noise(seed: int, positions: Tensor, vocab: int) -> Tensor:
    """:func:`gumbel` of all positions [S, Q] at once, of any integer type: packed steps have int32 positions."""
    positions = positions.long()  # in int32 the hash would overflow, which gives other noise than AR's
    return gumbel(torch.full_like(positions[:, :1], seed), positions, vocab)


def over(values: Tensor, temperature: float) -> Tensor:
    """Divide float32 ``values`` by the temperature with IEEE rounding; by a Python number, CUDA multiplies instead."""
    return values / values.new_full((), temperature)


def _order(values: Tensor) -> Tensor:
    """int32 keys in the order of float32 values: -0 equals +0, and NaN is the largest, as in ``argmax``."""
    bits = (values + 0.0).view(torch.int32)
    keys = bits ^ ((bits >> 31) & _NAN)  # the larger a negative float's magnitude, the larger its bits
    return keys.masked_fill_(values.isnan(), _NAN)


def _descending(keys: Tensor) -> Tensor:
    """int32 keys [R, V], each row in descending order."""
    if keys.device.type != "cpu":
        return keys.sort(dim=-1, descending=True).values
    return ~torch.from_numpy(np.sort((~keys).numpy()))  # ten times as fast as torch's


def _masses(scores: Tensor, largest: Tensor) -> Tensor:
    """Weights of tokens in top-p: int64 ``exp(score - largest)`` with 40 fractional bits, rounded down.

    Computed with integers and with float32 operations that follow IEEE rounding, so that the bits are the same on any
    device. Sums of up to 2^22 weights fit. ``2**turns * exp(rest)`` with rest in ±ln 2 / 2 and
    ``exp(r) = 1 + r + r² q(r)``, q of degree 4, our own minimax fit: its relative error is 4e-9, that of the weight
    9e-8 plus one last bit.

    The largest score and scores equal to it weigh 2^40, even if infinite or NaN; then all other tokens weigh 0.

    ``scores``: float32 [R, V]; ``largest``: [R, 1], NaN if a score of the row is NaN.
    """
    gap = (scores - largest).clamp_(min=_LEAST).nan_to_num_(nan=_LEAST)
    gap.masked_fill_((scores == largest) | scores.isnan(), 0.0)
    turns = (gap * 1.44269504) + 12582912.0 - 12582912.0  # to the nearest integer
    gap -= turns * 0.693359375  # ln 2 in two parts; the first has so few bits that the product is exact
    gap += turns * 2.1219444e-4
    poly = gap * 0.0013814539415761828
    for part in (0.00836874544620514, 0.04166838899254799, 0.1666652113199234):
        poly = poly.add_(part).mul_(gap)
    poly = poly.add_(0.4999999403953552).mul_(gap.square()).add_(gap).add_(1.0)
    return poly.mul_(2.0**24).long().bitwise_left_shift_(16).bitwise_right_shift_(turns.neg_().long())


def _outside(logits: Tensor, sampling: Sampling) -> Tensor:
    """Find the tokens that top-k, and then top-p among the remaining tokens, remove.

    Tokens are ordered by logit, equal logits by token id. Top-k keeps all tokens equal to the k-th, and all tokens if
    the k-th is NaN. Top-p removes a token if the tokens before it weigh at least ``ceil(top_p * sum)`` together, where
    this limit is computed in float64 and is at least 1. Weights are integers (:func:`_masses`), so that sums do not
    depend on their order: the search for the cut in :mod:`specbench.engine.kernels.filters` gives the same cut as
    sorting does.

    ``logits``: float32 [R, V]. Returns bool [R, V].
    """
    top_k = min(sampling.top_k, logits.shape[-1])
    if sampling.top_p == 1:
        return logits < logits.topk(top_k, dim=-1).values[:, -1:]
    keys = _order(logits)
    ordered = keys.topk(top_k, dim=-1).values if top_k else _descending(keys)
    scores = over((ordered ^ ((ordered >> 31) & _NAN)).view(torch.float32), sampling.temperature)
    masses = _masses(scores, scores[:, :1])
    reached = masses.cumsum(-1)
    total = reached[:, -1:]
    if top_k:  # add tokens that equal the k-th without being among the k
        kth = ordered[:, -1:]
        total = total + masses[:, -1:] * ((keys == kth).sum(-1, True) - (ordered == kth).sum(-1, True))
    wanted = (total.double() * sampling.top_p).ceil_().long().clamp_(min=1).minimum(total)
    last = torch.searchsorted(reached, wanted).clamp_(max=ordered.shape[-1] - 1)
    limit, mass = ordered.gather(-1, last), masses.gather(-1, last)
    above = (masses * (ordered > limit)).sum(-1, keepdim=True)
    spare = torch.div(wanted - above + mass - 1, mass, rounding_mode="floor")  # number of tokens at the limit to keep
    equal = keys == limit
    return (keys < limit) | (equal & (equal.cumsum(-1) > spare))


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [S, Q, V] in float32, divided by the temperature, -inf for filtered tokens; unchanged if greedy.

    Tokens are sampled from their softmax.
    """
    if sampling.greedy:
        return logits
    values = logits.float()
    found = over(values, sampling.temperature)
    if sampling.filters:
        vocab = values.shape[-1]
        found.view(-1, vocab).masked_fill_(_outside(values.reshape(-1, vocab), sampling), -torch.inf)
    return found


def perturbed(kept: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
    """Add the noise of each position to the result of :func:`filtered`, in place; greedy sampling has no noise."""
    if sampling.greedy:
        return kept
    vocab = kept.shape[-1]
    if kept.device.type == "cpu":
        for row, position in zip(kept.view(-1, vocab), positions.flatten().tolist(), strict=True):
            row += _cpu_row(sampling.seed, position, vocab)
        return kept
    return kept.add_(_noise(sampling.seed, positions, vocab))


def scores(logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
    """Scores whose argmax is the next token.

    ``logits``: [S, Q, V]; ``positions``: [S, Q], the position that the chosen token will have (one after its row).
    Returns the logits themselves when greedy, else float32 perturbed logits.
    """
    return perturbed(filtered(logits, sampling), positions, sampling)
