"""Acceptance on the device, one program per slot: the rule of :func:`specbench.engine.ops.accept_path`."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels.bits import OPTIONS, UNALIGNED, WORD, block_of, widest_slot
from specbench.engine.layout import Layout


@triton.jit(
    do_not_specialize=["rows", "words"],
    do_not_specialize_on_alignment=[*UNALIGNED, "tokens", "accept", "next_token", "taken", "path", "bonus"],
)
def _accept(
    tokens, parents, accept, bits, depth, next_token, slot_of, firsts, counts, taken, path, bonus, rows, words,
    BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Program (slot); the one of a slot more than there are writes the path of padding."""
    slot = tl.program_id(0)
    if slot == tl.num_programs(0) - 1:
        for start in range(0, rows, BLOCK):
            at = start + tl.arange(0, BLOCK)
            padding = tl.load(slot_of + at, mask=at < rows, other=0) == slot
            tl.store(path + at, tl.zeros([BLOCK], tl.int32), mask=padding & (at < rows))
        return
    first, count = tl.load(firsts + slot), tl.load(counts + slot)
    if count == 0:
        tl.store(taken + slot, 0)
        tl.store(bonus + slot, 0)
        return

    row = tl.arange(0, BLOCK)
    inside = row < count
    expected = tl.load(next_token + tl.load(parents + first + row, mask=inside, other=0), mask=inside, other=0)
    allowed = tl.load(accept + first + row, mask=inside, other=0) != 0
    matches = (tl.load(tokens + first + row, mask=inside, other=0) == expected) & allowed | (row == 0)

    # The rows that match as a bitmask: the bits of a word are distinct, so their sum is their union.
    flags = tl.reshape(tl.where(matches, 1 << (row % 32), 0), [WORDS, 32])
    matching = tl.sum(flags, 1)
    word = tl.arange(0, WORDS)
    mine = bits + (first + row).to(tl.int64) * words
    present = inside[:, None] & (word * 32 < count)[None, :]
    above = tl.load(mine[:, None] + word[None, :], mask=present, other=0)
    missing = tl.max(((above & ~matching[None, :]) != 0).to(tl.int32), 1)
    reached = matches & (missing == 0)  # rows that do not exist may not be accepted

    # One number orders by depth, then by lowest row. The root is always reached.
    level = tl.load(depth + first + row, mask=inside, other=0)
    best = tl.max(tl.where(reached, level * BLOCK + (BLOCK - 1 - row), -1), 0)
    kept = best // BLOCK + 1
    last = first + BLOCK - 1 - best % BLOCK

    of_last = tl.load(bits + last.to(tl.int64) * words + row // 32, mask=inside, other=0)
    # Two stores that never meet: the depths of the path are 0 .. kept - 1, and each is one row's.
    tl.store(path + first + level, row, mask=inside & (((of_last >> (row % 32)) & 1) != 0))
    tl.store(path + first + row, row, mask=inside & (row >= kept))
    tl.store(taken + slot, kept)
    tl.store(bonus + slot, tl.load(next_token + last))


def accept_paths(
    tokens: Tensor,
    parents: Tensor,
    accept: Tensor,
    bits: Tensor,
    depth: Tensor,
    next_token: Tensor,
    layout: Layout,
) -> tuple[Tensor, Tensor, Tensor]:
    """The longest path of each slot that the target itself would have produced.

    A row matches when its token is the target's next token after its parent, and is reached when it and all its
    ancestors match and may be accepted. The deepest reached row wins, the lowest row among equals.

    Args:
        tokens: int32 [N] token of each row. This and all other inputs are contiguous.
        parents: int32 [N] parent row; roots and padding name themselves.
        accept: int32 or bool [N]; 0 for draft-only rows.
        bits: int32 [N, W] from :func:`specbench.engine.kernels.bits.tree_bits`.
        depth: int32 [N] from the same.
        next_token: int32 [N] the target's token after each row.
        layout: of the rows, at most :data:`specbench.engine.kernels.bits.MOST_ROWS` of a slot.

    Returns:
        (count, path, bonus): ``count`` int32 [S], accepted rows with the root, 0 where a slot has no rows; ``path``
        int32 [N], where the place of depth d among a slot's rows names the accepted row of that depth, counted from the
        slot's first, and d itself from ``count`` on (0 for padding); ``bonus`` int32 [S], the target's own token after
        the last accepted row, 0 where a slot has no rows.

    Raises:
        ValueError: an input is not contiguous.
    """
    if not all(each.is_contiguous() for each in (tokens, parents, accept, bits, depth, next_token)):
        raise ValueError("accept_paths needs contiguous inputs")
    slots, (rows, words) = len(layout.first), bits.shape
    count, bonus = torch.empty(2, slots, dtype=torch.int32, device=tokens.device)
    path = torch.empty(rows, dtype=torch.int32, device=tokens.device)
    block = block_of(widest_slot(layout))
    _accept[(slots + 1,)](
        tokens, parents, accept, bits, depth, next_token, layout.slot, layout.first, layout.count,
        count, path, bonus, rows, words,
        BLOCK=block, WORDS=block // WORD, num_warps=8 if block > 128 else 4, **OPTIONS,
    )  # fmt: skip
    return count, path, bonus
