"""Inputs of a draft head from a step that is still running: features along each path, and the tokens after them."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit(
    do_not_specialize=["rows", "hidden_row", "tokens_row"],
    do_not_specialize_on_alignment=[  # parts of arrays whose offsets depend on the rows of a step
        "next_token", "path", "count", "bonus", "firsts", "follows", "new", "anchor", "tokens", "features",
    ],
)  # fmt: skip
def _take(
    hidden, next_token, path, count, bonus, firsts, follows, new, anchor, tokens, features,
    rows, size, hidden_row, tokens_row, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (block of columns, place, slot); the grid's second dimension is the most new rows of a text."""
    slot, place = tl.program_id(2), tl.program_id(1)
    if tl.load(follows + slot) == 0:
        return
    kept = tl.load(count + slot)
    row = tl.minimum(tl.load(firsts + slot) + place, rows - 1)
    if tl.program_id(0) == 0:
        of_path = tl.minimum(tl.load(firsts + slot) + tl.load(path + row), rows - 1)
        tl.store(tokens + place * tokens_row + slot, tl.where(place < kept, tl.load(next_token + of_path), 0))
        if place == 0:
            tl.store(new + slot, kept)
            tl.store(anchor + slot, tl.load(bonus + slot))
    if place >= kept:
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    found = tl.load(hidden + row.to(tl.int64) * hidden_row + at, mask=inside, other=0.0)
    to = (slot.to(tl.int64) * tl.num_programs(1) + place) * size
    tl.store(features + to + at, found.to(features.dtype.element_ty), mask=inside)


def take(
    outcome: tuple[Tensor, Tensor, Tensor, Tensor],
    firsts: Tensor,
    hidden: Tensor,
    follows: Tensor,
    new: Tensor,
    anchor: Tensor,
    tokens: Tensor,
    features: Tensor,
) -> None:
    """:meth:`specbench.engine.ops.TorchOps.take` in one launch."""
    next_token, path, count, bonus = outcome
    slots, places, size = features.shape
    _take[(max(1, triton.cdiv(size, _BLOCK)), places, slots)](
        hidden, next_token, path, count, bonus, firsts, follows, new, anchor, tokens, features,
        len(next_token), size, hidden.stride(0), tokens.stride(0), BLOCK=_BLOCK, **_OPTIONS,
    )  # fmt: skip
