"""Ancestor bitmasks: which rows of its own slot each row sees, 32 rows per word.

Equal to :func:`specbench.engine.ops.ancestors`. Bits are counted from the slot's first row, so that attention and
acceptance read only as many words of a row as its own tree has.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.layout import Layout

WORD = 32  # rows per word of a bitmask
MOST_ROWS = 512  # most rows of a slot, which a program holds on the chip
_BLOCKS = (32, 128, MOST_ROWS)  # numbers of rows that a program can hold, one compilation each
OPTIONS = {"enable_fp_fusion": True}  # triton's default depends on its version
# These are packed in one array, at offsets that depend on the number of rows: another alignment would be compiled anew.
UNALIGNED = ("parents", "slot_of", "firsts", "counts", "lengths")


def block_of(rows: int) -> int:
    """Rows that a program holds, for slots of up to ``rows`` rows."""
    return next(block for block in _BLOCKS if block >= rows)


def widest_slot(layout: Layout) -> int:
    """Most rows of a slot; all rows if the host does not know the layout (during a capture)."""
    if layout.groups is None:
        return len(layout.slot)
    return max(
        (group.rows.stop - group.rows.start) // (group.slots.stop - group.slots.start) for group in layout.groups
    )


@triton.jit(do_not_specialize=["rows", "words"], do_not_specialize_on_alignment=UNALIGNED)
def _tree_bits(
    parents, slot_of, firsts, counts, bits, depth, rows, words, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (slot, word): do pointer doubling on one word of the mask of each of the slot's rows.

    After round k a row's word holds the ancestors at distances below 2^k, and ``hop`` is the ancestor at distance 2^k,
    or the root; additional rounds change nothing. Words do not depend on each other, so each has its own program: the
    state is one value per row, which ``tl.gather`` exchanges on the chip without global memory. The programs of one
    additional slot set the depth of padding.
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
    above = (hop != row).to(tl.int32)  # number of ancestors at distances up to 2^k; the root adds 0 when met again
    for _ in tl.static_range(ROUNDS):
        reach |= tl.gather(reach, hop, 0)
        above += tl.gather(above, hop, 0)
        hop = tl.gather(hop, hop, 0)
    tl.store(bits + (first + row).to(tl.int64) * words + word, reach, mask=inside)
    if word == 0:
        tl.store(depth + first + row, above, mask=inside)


def tree_bits(parents: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Find which rows of its slot each row may attend to, as bits.

    Args:
        parents: int32 [N], parent row, before its children; roots and padding rows are their own parents. Contiguous.
        layout: layout of the rows, at most :data:`MOST_ROWS` per slot.

    Returns:
        (bits, depth): ``bits`` int32 [N, W], where bit j % 32 of word j // 32 of a row is set when the j-th row of its
        slot is this row or one of its ancestors. W is enough for the widest slot, or for all N rows if the host does
        not know the layout; words after a slot's own rows, and words of padding, are neither written nor read.
        ``depth`` int32 [N], the number of ancestors, 0 for padding.

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
    """:func:`tree_bits` for slots with any number of rows: pointer doubling on whole masks, in torch."""
    hop, rank, most = parents.long(), layout.rank, widest_slot(layout)
    bits = torch.zeros(len(parents), triton.cdiv(most, WORD), dtype=torch.int32, device=parents.device)
    bits.scatter_(1, (rank // WORD)[:, None], (1 << (rank % WORD)).to(torch.int32)[:, None])
    depth = (hop != torch.arange(len(hop), device=hop.device)).to(torch.int32)
    for _ in range((most - 1).bit_length()):
        bits, depth, hop = bits | bits[hop], depth + depth[hop], hop[hop]
    return bits, depth


def span_bits(columns: Tensor, layout: Layout) -> Tensor:
    """int32 [N, W] like :func:`tree_bits`, where each row sees the first ``columns`` [N] rows of its slot."""
    words = triton.cdiv(widest_slot(layout), WORD)
    first = torch.arange(words, device=columns.device) * WORD
    ones = (columns.long()[:, None] - first).clamp(0, WORD)
    return ((1 << ones) - 1).to(torch.int32)


def reach_of(bits: Tensor, layout: Layout) -> Tensor:
    """bool [N, N], element (i, j): row j is row i or one of its ancestors; meaningless for padding."""
    rank = layout.rank
    seen = (bits[:, rank // WORD] >> (rank % WORD).to(torch.int32)) & 1
    return (seen != 0) & (layout.slot[:, None] == layout.slot)
