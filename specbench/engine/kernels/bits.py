"""Ancestor bitmasks of token trees: ``verify.ancestors``, 32 rows to a word."""
# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORD = 32  # rows per word of a bitmask


@triton.jit
def _tree_bits(parents, bits, depth, rows, words, slot_stride, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (slot, word): pointer doubling on one word of each row's mask.

    After round k a row's word holds the ancestors nearer than 2^k, and ``hop`` is the ancestor 2^k above, or the root.
    Words do not depend on each other, so they are programs of their own: all state is one value per row, which
    ``tl.gather`` exchanges on the chip, and nothing passes through global memory.
    """
    slot, word = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.arange(0, BLOCK)
    inside = row < rows
    hop = tl.load(parents + slot * slot_stride + row, mask=inside, other=0)
    reach = tl.where(row // 32 == word, 1 << (row % 32), 0)
    above = (hop != row).to(tl.int32)  # ancestors nearer than 2^k, counted; the root adds none when met again
    for _ in tl.static_range(ROUNDS):
        reach |= tl.gather(reach, hop, 0)
        above += tl.gather(above, hop, 0)
        hop = tl.gather(hop, hop, 0)
    tl.store(bits + (slot * rows + row) * words + word, reach, mask=inside)
    if word == 0:
        tl.store(depth + slot * rows + row, above, mask=inside)


def tree_bits(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows each row may attend to inside its tree, as bits.

    Args:
        parents: int32 [S, Q] parent row, before its children; the root and padding rows name themselves. Contiguous in
            the last dimension.

    Returns:
        (bits, depth): ``bits`` int32 [S, Q, W], W = ceil(Q / 32), where bit j % 32 of word j // 32 of row i is set when
        row j is i or one of its ancestors; ``depth`` int32 [S, Q], the number of ancestors.

    Raises:
        ValueError: a slot's parents are not contiguous.
    """
    if parents.stride(-1) != 1:
        raise ValueError("tree_bits needs parents that are contiguous in their last dimension")
    slots, rows = parents.shape
    words = triton.cdiv(rows, WORD)
    bits = torch.empty(slots, rows, words, dtype=torch.int32, device=parents.device)
    depth = torch.empty(slots, rows, dtype=torch.int32, device=parents.device)
    _tree_bits[(slots, words)](
        parents, bits, depth, rows, words, parents.stride(0),
        ROUNDS=(rows - 1).bit_length(), BLOCK=max(WORD, triton.next_power_of_2(rows)), num_warps=4,
    )  # fmt: skip
    return bits, depth
