"""Acceptance on the device: ancestor bitmasks, 32 rows to a word, and the acceptance rule, one program per slot.

Both equal their oracles in :mod:`specbench.engine.ops`, ``ancestors`` and ``accept_path``.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _accept(
    tokens, parents, accept, bits, depth, next_token, forced, count, path, bonus, rows, words,
    tokens_stride, parents_stride, accept_stride, next_stride, forced_stride,
    FORCED: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    tokens += slot * tokens_stride
    parents += slot * parents_stride
    accept += slot * accept_stride
    next_token += slot * next_stride
    bits += slot * rows * words
    depth += slot * rows
    path += slot * rows

    row = tl.arange(0, BLOCK)
    inside = row < rows
    parent = tl.load(parents + row, mask=inside, other=0)
    expected = tl.load(next_token + parent, mask=inside, other=0)
    if FORCED:
        forced += slot * forced_stride
        instead = tl.load(forced + parent, mask=inside, other=-1)
        expected = tl.where(instead >= 0, instead, expected)
        # Other threads may read an element before or after it is replaced here: they put the same value in its place.
        instead = tl.load(forced + row, mask=inside, other=-1)
        tl.store(next_token + row, instead, mask=inside & (instead >= 0))
    allowed = tl.load(accept + row, mask=inside, other=0) != 0
    matches = (tl.load(tokens + row, mask=inside, other=0) == expected) & allowed | (row == 0)

    # The rows that match as a bitmask: the bits of a word are distinct, so their sum is their union.
    flags = tl.reshape(tl.where(matches, 1 << (row % 32), 0), [WORDS, 32])
    matching = tl.sum(flags, 1)
    word = tl.arange(0, WORDS)
    present = inside[:, None] & (word < words)[None, :]
    above = tl.load(bits + row[:, None] * words + word[None, :], mask=present, other=0)
    missing = tl.max(((above & ~matching[None, :]) != 0).to(tl.int32), 1)
    reached = matches & (missing == 0)

    # One number orders by depth, then by lowest row. The root is always reached.
    level = tl.load(depth + row, mask=inside, other=0)
    best = tl.max(tl.where(reached, level * BLOCK + (BLOCK - 1 - row), -1), 0)
    kept = best // BLOCK + 1
    last = BLOCK - 1 - best % BLOCK

    mine = (tl.load(bits + last * words + row // 32, mask=inside, other=0) >> (row % 32)) & 1
    # Two stores that never meet: the depths of the path are 0 .. kept - 1, and each is one row's.
    tl.store(path + level, row, mask=inside & (mine != 0))
    tl.store(path + row, row, mask=inside & (row >= kept))
    tl.store(count + slot, kept)
    following = tl.load(next_token + last)
    if FORCED:
        instead = tl.load(forced + last)
        following = tl.where(instead >= 0, instead, following)
    tl.store(bonus + slot, following)


def accept_paths(
    tokens: Tensor,
    parents: Tensor,
    accept: Tensor,
    bits: Tensor,
    depth: Tensor,
    next_token: Tensor,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The longest path of each slot that the target itself would have produced.

    The rule is that of :func:`specbench.engine.ops.accept_path`: a row matches when its token is the target's next
    token after its parent, and is reached when it and all its ancestors match and may be accepted. The deepest reached
    row wins, the lowest row among equals.

    Args:
        tokens: int32 [S, Q] token of each row. This and all other inputs: contiguous in the last dimension.
        parents: int32 [S, Q] parent row; root and padding name themselves.
        accept: int32 or bool [S, Q]; 0 for draft-only and padding rows.
        bits: int32 [S, Q, W] from :func:`tree_bits`, contiguous.
        depth: int32 [S, Q] from the same, contiguous.
        next_token: int32 [S, Q] the target's token after each row.
        forced: int32 [S, Q]; where it is 0 or more it takes the place of ``next_token``, which is updated. For
            simulated acceptance.

    Returns:
        (count, path, bonus): ``count`` int32 [S], accepted rows, root included; ``path`` int32 [S, Q], where
        ``path[d]`` is the accepted row of depth d for d < count, and d beyond; ``bonus`` int32 [S], the target's own
        token after the last accepted row.

    Raises:
        ValueError: an input is not contiguous as said above.
    """
    by_row = [tokens, parents, accept, next_token, *([] if forced is None else [forced])]
    if any(each.stride(-1) != 1 for each in by_row) or not (bits.is_contiguous() and depth.is_contiguous()):
        raise ValueError("accept_paths needs inputs that are contiguous in the last dimension; bits and depth in all")
    slots, rows, words = bits.shape
    count, bonus = torch.empty(2, slots, dtype=torch.int32, device=tokens.device)
    path = torch.empty(slots, rows, dtype=torch.int32, device=tokens.device)
    block = max(32, triton.next_power_of_2(rows))
    _accept[(slots,)](
        tokens, parents, accept, bits, depth, next_token, forced, count, path, bonus, rows, words,
        tokens.stride(0), parents.stride(0), accept.stride(0), next_token.stride(0),
        0 if forced is None else forced.stride(0),
        FORCED=forced is not None, BLOCK=block, WORDS=block // 32, num_warps=8 if block > 128 else 4,
    )  # fmt: skip
    return count, path, bonus


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
