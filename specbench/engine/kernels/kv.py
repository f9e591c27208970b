"""Update the static KV cache in a step: store its rows in scratch cells, then move the accepted rows together.

All offsets are int64: a cache of many slots has more than 2^31 elements.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels.bits import OPTIONS, UNALIGNED
from specbench.engine.layout import Layout

_TILE = 2048  # elements of a tile: 16 for each of 128 threads
_MAX_TILE_ROWS = 16


def _tile(size: int) -> tuple[int, int]:
    """(rows, elements) of a tile over cells of ``size`` elements, both powers of two; the same for any rows."""
    wide = triton.next_power_of_2(size)
    return min(_MAX_TILE_ROWS, max(1, _TILE // wide)), wide


@triton.jit
def _copy_rows(source, target, inside, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Copy the rows that ``source`` [rows] points to, to the rows that ``target`` [rows] points to."""
    column = tl.arange(0, WIDE)[None, :]
    mask = inside[:, None] & (column < SIZE)
    tl.store(target[:, None] + column, tl.load(source[:, None] + column, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["rows", "slots"], do_not_specialize_on_alignment=UNALIGNED)
def _write(
    key, value, keys, values, slot_of, firsts, lengths, rows, slots,
    key_head, key_row, value_head, value_row,
    keys_slot, keys_head, keys_cell, values_slot, values_head, values_cell,
    KEY: tl.constexpr, KEY_WIDE: tl.constexpr, VALUE: tl.constexpr, VALUE_WIDE: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (head, tile of rows of one or several slots): store their keys, then their values."""
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    slot = tl.load(slot_of + row, mask=row < rows, other=slots)
    real = slot < slots
    cell = (tl.load(lengths + slot, mask=real, other=0) + row - tl.load(firsts + slot, mask=real, other=0)).to(tl.int64)
    slot, row = slot.to(tl.int64), row.to(tl.int64)
    _copy_rows(
        key + head * key_head + row * key_row,
        keys + slot * keys_slot + head * keys_head + cell * keys_cell,
        real, KEY, KEY_WIDE,
    )  # fmt: skip
    _copy_rows(
        value + head * value_head + row * value_row,
        values + slot * values_slot + head * values_head + cell * values_cell,
        real, VALUE, VALUE_WIDE,
    )  # fmt: skip


def write_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, layout: Layout, lengths: Tensor) -> None:
    """Store a layer's new keys and values: row i of a slot goes to its cell ``lengths + i``; padding is not stored.

    Args:
        key: [1, KV heads, N, D]; the last dimension of this and all other tensors is contiguous.
        value: [1, KV heads, N, Dv].
        keys: the layer's cache, [S, KV heads, L, D]; whether all rows fit in it is not checked.
        values: [S, KV heads, L, Dv].
        layout: layout of the rows over the S slots.
        lengths: integer [S], cached tokens of each slot, on the device.

    Raises:
        ValueError: a last dimension is not contiguous.
    """
    if any(each.stride(-1) != 1 for each in (key, value, keys, values, lengths)):
        raise ValueError("write_kv needs keys, values and lengths that are contiguous in their last dimension")
    _, heads, rows, key_size = key.shape
    value_size = value.shape[-1]
    tile_rows, _ = _tile(max(key_size, value_size))
    _write[(heads, triton.cdiv(rows, tile_rows))](
        key, value, keys, values, layout.slot, layout.first, lengths, rows, len(layout.first),
        *key.stride()[1:3], *value.stride()[1:3], *keys.stride()[:3], *values.stride()[:3],
        KEY=key_size, KEY_WIDE=triton.next_power_of_2(key_size),
        VALUE=value_size, VALUE_WIDE=triton.next_power_of_2(value_size), TILE_ROWS=tile_rows, num_warps=4,
        **OPTIONS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slots", "heads"], do_not_specialize_on_alignment=[*UNALIGNED, "count", "path"])
def _commit(
    buffer, firsts, lengths, count, path, slots, heads, layer_stride, slot_stride, head_stride, cell_stride,
    SIZE: tl.constexpr, WIDE: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (layer, slot, head): move all its cells, which no other program touches.

    In-place moves are safe because the path ascends and ``path[d] >= d``. Cell d is written for depth d and would be
    read later only as ``path[e]`` with e > d, but ``path[e] >= e > d``: a written cell is never read again, so loads
    may run ahead of stores. A store must not run ahead of earlier loads: cell d may be the source of an earlier depth,
    for another thread in the same tile. Therefore there is a barrier.
    """
    program = tl.program_id(0)
    slot = program // heads % slots
    path += tl.load(firsts + slot)
    kept = tl.load(count + slot)
    # An ascending path that ends at row kept - 1 is 0 .. kept - 1: every row is already in place. The usual case.
    if tl.load(path + kept - 1, mask=kept > 0, other=-1) != kept - 1:
        head, layer = (program % heads).to(tl.int64), (program // heads // slots).to(tl.int64)
        start = tl.load(lengths + slot).to(tl.int64)
        buffer += layer * layer_stride + slot.to(tl.int64) * slot_stride + head * head_stride + start * cell_stride
        column = tl.arange(0, WIDE)
        for first in range(0, kept, TILE_ROWS):
            depth = first + tl.arange(0, TILE_ROWS)
            row = tl.load(path + depth, mask=depth < kept, other=0)
            mask = ((depth < kept) & (row != depth))[:, None] & (column < SIZE)[None, :]
            cells = tl.load(buffer + row[:, None].to(tl.int64) * cell_stride + column[None, :], mask=mask)
            tl.debug_barrier()
            tl.store(buffer + depth[:, None].to(tl.int64) * cell_stride + column[None, :], cells, mask=mask)


def commit_rows(buffers: Sequence[Tensor], layout: Layout, lengths: Tensor, count: Tensor, path: Tensor) -> None:
    """Move the accepted rows of a step to the front of its scratch cells in every layer; one launch per buffer.

    Args:
        buffers: cache buffers [layers, S, KV heads, L, size], the last dimension contiguous.
        layout: layout of the step's rows over the S slots.
        lengths: integer [S], cached tokens of each slot before the step.
        count: integer [S], accepted rows, from :func:`specbench.engine.kernels.accept.accept_paths`.
        path: integer [N], from :func:`specbench.engine.kernels.accept.accept_paths`: a slot's path starts at its first
            row, and cell ``lengths + path[d]`` moves to ``lengths + d`` for d < count. Ascending, ``path[d] >= d``.

    Raises:
        ValueError: a last dimension is not contiguous.
    """
    if any(each.stride(-1) != 1 for each in (*buffers, lengths, count, path)):
        raise ValueError("commit_rows needs a path and buffers that are contiguous in their last dimension")
    for buffer in buffers:
        layers, slots, heads, _, size = buffer.shape
        tile_rows, wide = _tile(size)
        _commit[(layers * slots * heads,)](
            buffer, layout.first, lengths, count, path, slots, heads, *buffer.stride()[:4],
            SIZE=size, WIDE=wide, TILE_ROWS=tile_rows, num_warps=4, **OPTIONS,
        )  # fmt: skip
