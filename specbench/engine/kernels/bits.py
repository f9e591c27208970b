"""Ancestor bitmasks: which rows of its own slot each row sees, 32 of them to a word.

Equal to :func:`specbench.engine.ops.ancestors`. Bits count from the slot's first row, so that what attention and
acceptance read of a row is as long as its own tree.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.layout import Layout

WORD = 32  # rows per word of a bitmask
MOST_ROWS = 512  # of a slot, that a program holds on the chip
_BLOCKS = (32, 128, MOST_ROWS)  # rows that a program holds: each is a compilation of its own
OPTIONS = {"enable_fp_fusion": True}  # triton's default depends on its version
# What is packed into one array lies where the number of rows says, so its alignment would be a compilation too.
UNALIGNED = ("parents", "slot_of", "firsts", "counts", "lengths")


def block_of(rows: int) -> int:
    """Rows that a program holds, for slots of up to so many."""
    return next(block for block in _BLOCKS if block >= rows)


def widest_slot(layout: Layout) -> int:
    """Rows of a slot, at most: what the host knows of the layout, and all rows where it knows nothing (a capture)."""
    if layout.groups is None:
        return len(layout.slot)
    return max(
        (group.rows.stop - group.rows.start) // (group.slots.stop - group.slots.start) for group in layout.groups
    )


@triton.jit(do_not_specialize=["rows", "words"], do_not_specialize_on_alignment=UNALIGNED)
def _tree_bits(
    parents, slot_of, firsts, counts, bits, depth, rows, words, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (slot, word): pointer doubling on one word of the mask of each of the slot's rows.

    After round k a row's word holds the ancestors nearer than 2^k, and ``hop`` is the ancestor 2^k above, or the root;
    more rounds than a tree is deep change nothing. Words do not depend on each other, so they are programs of their
    own: all state is one value per row, which ``tl.gather`` exchanges on the chip, and nothing passes through global
    memory. The programs of one slot more than there are give padding its depth.
    """
    slot, word = tl.program_id(0), tl.program_id(1)
    if slot == tl.num_programs(0) - 1:
        for start in range(word * BLOCK, rows, tl.num_programs(1) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            padding = tl.load(slot_of + at, mask=at < rows, other=0) == slot
            tl.store(depth + at, tl.zeros([BLOCK], tl.int32), mask=padding & (at < rows))
        return
    first, count = tl.load(firsts + slot), tl.load(counts + slot)
    if word * 32 >= count:
        return
    row = tl.arange(0, BLOCK)
    inside = row < count
    hop = tl.load(parents + first + row, mask=inside, other=first) - first
    reach = tl.where(row // 32 == word, 1 << (row % 32), 0)
    above = (hop != row).to(tl.int32)  # ancestors nearer than 2^k, counted; the root adds none when met again
    for _ in tl.static_range(ROUNDS):
        reach |= tl.gather(reach, hop, 0)
        above += tl.gather(above, hop, 0)
        hop = tl.gather(hop, hop, 0)
    tl.store(bits + (first + row).to(tl.int64) * words + word, reach, mask=inside)
    if word == 0:
        tl.store(depth + first + row, above, mask=inside)


def tree_bits(parents: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Which rows of its slot each row may attend to, as bits.

    Args:
        parents: int32 [N] parent row, before its children; roots and padding rows name themselves. Contiguous.
        layout: of the rows, at most :data:`MOST_ROWS` of a slot.

    Returns:
        (bits, depth): ``bits`` int32 [N, W], where bit j % 32 of word j // 32 of a row is set when the j-th row of its
        slot is this row or one of its ancestors. W is that of the widest slot, or of all N rows where the host does not
        know it; words behind a slot's own rows, and those of padding, are not written and nobody reads them. ``depth``
        int32 [N], the number of ancestors, 0 of padding.

    Raises:
        ValueError: the parents are not contiguous.
    """
    if not parents.is_contiguous():
        raise ValueError("tree_bits needs contiguous parents")
    rows, most = len(parents), widest_slot(layout)
    words, block = triton.cdiv(most, WORD), block_of(most)
    bits = torch.empty(rows, words, dtype=torch.int32, device=parents.device)
    depth = torch.empty(rows, dtype=torch.int32, device=parents.device)
    _tree_bits[(len(layout.first) + 1, words)](
        parents, layout.slot, layout.first, layout.count, bits, depth, rows, words,
        ROUNDS=(block - 1).bit_length(), BLOCK=block, num_warps=4, **OPTIONS,
    )  # fmt: skip
    return bits, depth


def tree_bits_by_torch(parents: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """What :func:`tree_bits` returns, for slots of any number of rows: pointer doubling on whole masks."""
    hop, rank, most = parents.long(), layout.rank, widest_slot(layout)
    bits = torch.zeros(len(parents), triton.cdiv(most, WORD), dtype=torch.int32, device=parents.device)
    bits.scatter_(1, (rank // WORD)[:, None], (1 << (rank % WORD)).to(torch.int32)[:, None])
    depth = (hop != torch.arange(len(hop), device=hop.device)).to(torch.int32)
    for _ in range((most - 1).bit_length()):
        bits, depth, hop = bits | bits[hop], depth + depth[hop], hop[hop]
    return bits, depth


def reach_of(bits: Tensor, layout: Layout) -> Tensor:
    """bool [N, N], element (i, j): row j is row i or one of its ancestors; without meaning for padding."""
    rank = layout.rank
    seen = (bits[:, rank // WORD] >> (rank % WORD).to(torch.int32)) & 1
    return (seen != 0) & (layout.slot[:, None] == layout.slot)
