"""Find accepted paths, one program per slot, with the rule of :func:`specbench.engine.ops.accept_path`."""

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
    """Program (slot); one additional program writes the path of padding."""
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

    # Bitmask of the rows that match: the bits of a word are distinct, so their sum is their union.
    flags = tl.reshape(tl.where(matches, 1 << (row % 32), 0), [WORDS, 32])
    matching = tl.sum(flags, 1)
    word = tl.arange(0, WORDS)
    mine = bits + (first + row).to(tl.int64) * words
    present = inside[:, None] & (word * 32 < count)[None, :]
    above = tl.load(mine[:, None] + word[None, :], mask=present, other=0)
    missing = tl.max(((above & ~matching[None, :]) != 0).to(tl.int32), 1)
    reached = matches & (missing == 0)  # rows that do not exist have accept = 0

    # One number orders rows by depth, then by lowest index. The root is always reached.
    level = tl.load(depth + first + row, mask=inside, other=0)
    best = tl.max(tl.where(reached, level * BLOCK + (BLOCK - 1 - row), -1), 0)
    kept = best // BLOCK + 1
    last = first + BLOCK - 1 - best % BLOCK

    of_last = tl.load(bits + last.to(tl.int64) * words + row // 32, mask=inside, other=0)
    # The two stores never overlap: the depths of the path are 0 .. kept - 1, each with exactly one row.
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
    """Find the longest path of each slot that the target itself would have produced.

    A row matches when its token is the target's next token after its parent, and is reached when it and all its
    ancestors match and may be accepted. The deepest reached row wins, and among equally deep rows the first one.

    Args:
        tokens: int32 [N], token of each row. This and all other inputs are contiguous.
        parents: int32 [N], parent row; roots and padding rows are their own parents.
        accept: int32 or bool [N]; 0 for draft-only rows.
        bits: int32 [N, W] from :func:`specbench.engine.kernels.bits.tree_bits`.
        depth: int32 [N] from :func:`specbench.engine.kernels.bits.tree_bits`.
        next_token: int32 [N], the target's token after each row.
        layout: of the rows, at most :data:`specbench.engine.kernels.bits.MOST_ROWS` per slot.

    Returns:
        (count, path, bonus): ``count`` int32 [S], rows of the path, root included, 0 for a slot without rows; ``path``
        int32 [N], at index d of a slot's rows the accepted row at depth d, relative to the slot's first row, and d
        itself for d >= ``count`` (0 for padding); ``bonus`` int32 [S], the target's own token after the last accepted
        row, 0 for a slot without rows.

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
