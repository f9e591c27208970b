"""Divide the work of tree attention: which program does what, and how a slot's cells are divided among splits.

This is device code: lengths and rows of slots are data there, so one captured grid serves all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_seen(position, window, chunked: tl.constexpr):
    """The first position that a row at ``position`` sees: of the last ``window``, or of its chunk of this size."""
    if chunked:
        return position // window * window
    else:
        return tl.maximum(position + 1 - window, 0)


@triton.jit
def plan(
    length, count, tiles, window, share, most,
    has_window: tl.constexpr, chunked: tl.constexpr, block_n: tl.constexpr, min_tiles: tl.constexpr,
    direct: tl.constexpr,
):  # fmt: skip
    """Divide a slot's cells among the splits of each of its tiles: first the prefix in blocks, then the tree's rows.

    The tree starts a new block, so that its mask words are aligned with the block's columns. The result depends only on
    the slot itself and on constants of the engine, so no other slot can change the order of a row's sums. Works for one
    slot or for a tensor of slots.

    Returns:
        (first, prefix_blocks, per_split, splits, room): the first visible cell, blocks of the prefix, blocks per split,
        number of splits that are not empty, and number of splits that the buffers of partial results can hold.
    """
    first = 0
    if has_window:
        # The root sees furthest back; its depth is 0.
        first = first_seen(length, window, chunked)
    prefix_blocks = (length - first + block_n - 1) // block_n
    blocks = prefix_blocks + (count + block_n - 1) // block_n
    if direct:
        return first, prefix_blocks, blocks, 1, 1
    else:
        room = tl.maximum(tl.minimum(share // tl.maximum(tiles, 1), most), 1)
        per_split = tl.maximum((blocks + room - 1) // room, min_tiles)
        return first, prefix_blocks, per_split, (blocks + per_split - 1) // per_split, room


@triton.jit
def place_of(
    program, counts, lengths, slots, height, programs_each, window, share, most,
    has_window: tl.constexpr, chunked: tl.constexpr, block_n: tl.constexpr, min_tiles: tl.constexpr,
    direct: tl.constexpr, block_s: tl.constexpr,
):  # fmt: skip
    """Find which slot a program works on.

    Returns:
        (slot, place): the slot, and the program's index among the programs of this slot. For the programs after those
        of all slots, ``slot`` is -1 minus the number of all slots' rows, and ``place`` is the program's index among
        these remaining programs.
    """
    every = tl.arange(0, block_s)
    count = tl.load(counts + every, mask=every < slots, other=0)
    programs = (count + height - 1) // height * programs_each
    if not direct:
        length = tl.load(lengths + every, mask=every < slots, other=0).to(tl.int32)
        _, _, _, splits, _ = plan(
            length, count, programs, window, share, most, has_window, chunked, block_n, min_tiles, direct
        )  # fmt: skip
        programs *= splits
    ends = tl.cumsum(programs, 0)
    before = ends <= program
    place = program - tl.max(tl.where(before, ends, 0), 0)
    slot = tl.sum(before.to(tl.int32), 0)
    return tl.where(slot < block_s, slot, -1 - tl.sum(count, 0)), place
