"""What a step does to the static KV cache: store its rows in scratch cells, then move the accepted ones together.

Offsets are int64 throughout: a cache of many slots has more than 2^31 elements.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # elements of a tile: 16 of each of 128 threads
_MAX_TILE_ROWS = 16


def _tile(rows: int, size: int) -> tuple[int, int]:
    """(rows, elements) of a tile over cells of ``size`` elements; powers of two."""
    wide = triton.next_power_of_2(size)
    return min(triton.next_power_of_2(rows), _MAX_TILE_ROWS, max(1, _TILE // wide)), wide


@triton.jit
def _copy_rows(source, target, row, inside, source_stride, target_stride, SIZE: tl.constexpr, WIDE: tl.constexpr):
    column = tl.arange(0, WIDE)
    mask = inside[:, None] & (column < SIZE)[None, :]
    far = row[:, None].to(tl.int64)
    new = tl.load(source + far * source_stride + column[None, :], mask=mask)
    tl.store(target + far * target_stride + column[None, :], new, mask=mask)


@triton.jit
def _write(
    key, value, keys, values, lengths, rows, heads,
    key_slot, key_head, key_row, value_slot, value_head, value_row,
    keys_slot, keys_head, keys_cell, values_slot, values_head, values_cell,
    KEY: tl.constexpr, KEY_WIDE: tl.constexpr, VALUE: tl.constexpr, VALUE_WIDE: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (slot and head, tile of rows): its keys, then its values."""
    slot, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    row = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    inside = row < rows
    cell = tl.load(lengths + slot).to(tl.int64)
    _copy_rows(
        key + slot * key_slot + head * key_head,
        keys + slot * keys_slot + head * keys_head + cell * keys_cell,
        row, inside, key_row, keys_cell, KEY, KEY_WIDE,
    )  # fmt: skip
    _copy_rows(
        value + slot * value_slot + head * value_head,
        values + slot * values_slot + head * values_head + cell * values_cell,
        row, inside, value_row, values_cell, VALUE, VALUE_WIDE,
    )  # fmt: skip


def write_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
    """Stores a layer's new keys and values: row i of slot s goes to cell ``lengths[s] + i``.

    Args:
        key: [S, KV heads, Q, D], any strides, the last dimension contiguous.
        value: [S, KV heads, Q, Dv], likewise.
        keys: the layer's cache, [S, KV heads, L, D], likewise; ``lengths[s] + Q <= L``, which is not checked.
        values: [S, KV heads, L, Dv], likewise.
        lengths: int32 [S] cached tokens of each slot, on the device.

    Raises:
        ValueError: a last dimension is not contiguous.
    """
    if any(each.stride(-1) != 1 for each in (key, value, keys, values)):
        raise ValueError("write_kv needs keys and values that are contiguous in their last dimension")
    slots, heads, rows, key_size = key.shape
    value_size = value.shape[-1]
    tile_rows, _ = _tile(rows, max(key_size, value_size))
    _write[(slots * heads, triton.cdiv(rows, tile_rows))](
        key, value, keys, values, lengths, rows, heads,
        *key.stride()[:3], *value.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        KEY=key_size, KEY_WIDE=triton.next_power_of_2(key_size),
        VALUE=value_size, VALUE_WIDE=triton.next_power_of_2(value_size), TILE_ROWS=tile_rows, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_slot"])
def _commit(
    buffer, lengths, count, path, first_slot, slots, heads, layer_stride, slot_stride, head_stride, cell_stride,
    path_stride, SIZE: tl.constexpr, WIDE: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (layer, slot, head): all moves of its cells, which are no one else's.

    In place, because the path ascends and ``path[d] >= d``. A cell is written at its depth d and would be read later
    only as some ``path[e]`` with e > d, but ``path[e] >= e > d``: nothing that was written is read again, so loads may
    run ahead of stores. A store may not run ahead of the loads before it: cell d may be the source of an earlier
    depth, of another thread's in the same tile. That is what the barrier is for.
    """
    program = tl.program_id(0)
    slot = program // heads % slots
    path += slot.to(tl.int64) * path_stride
    kept = tl.load(count + slot)
    # An ascending path that ends at row kept - 1 is 0 .. kept - 1: every row is in its place. The usual case.
    if tl.load(path + kept - 1, mask=kept > 0, other=-1) != kept - 1:
        head, layer = (program % heads).to(tl.int64), (program // heads // slots).to(tl.int64)
        start = tl.load(lengths + slot).to(tl.int64)
        buffer += layer * layer_stride + (first_slot + slot).to(tl.int64) * slot_stride
        buffer += head * head_stride + start * cell_stride
        column = tl.arange(0, WIDE)
        for first in range(0, kept, TILE_ROWS):
            depth = first + tl.arange(0, TILE_ROWS)
            row = tl.load(path + depth, mask=depth < kept, other=0)
            mask = ((depth < kept) & (row != depth))[:, None] & (column < SIZE)[None, :]
            cells = tl.load(buffer + row[:, None].to(tl.int64) * cell_stride + column[None, :], mask=mask)
            tl.debug_barrier()
            tl.store(buffer + depth[:, None].to(tl.int64) * cell_stride + column[None, :], cells, mask=mask)


def commit_rows(buffers: Sequence[Tensor], first_slot: int, lengths: Tensor, count: Tensor, path: Tensor) -> None:
    """Moves the accepted rows of a step to the front of its scratch cells, in every layer; a launch per buffer.

    Args:
        buffers: cache buffers [layers, slots, KV heads, L, size], the last dimension contiguous.
        first_slot: the buffers' slot that is slot 0 of the step.
        lengths: int32 [S] cached tokens of each slot before the step.
        count: int32 [S] accepted rows, from :func:`specbench.engine.kernels.accept.accept_paths`.
        path: int32 [S, Q] from the same: cell ``lengths + path[d]`` moves to ``lengths + d`` for d < count. Ascending,
            with ``path[d] >= d``.

    Raises:
        ValueError: a buffer or the path is not contiguous in its last dimension.
    """
    if path.stride(-1) != 1 or any(buffer.stride(-1) != 1 for buffer in buffers):
        raise ValueError("commit_rows needs a path and buffers that are contiguous in their last dimension")
    slots, rows = path.shape
    for buffer in buffers:
        layers, _, heads, _, size = buffer.shape
        tile_rows, wide = _tile(rows, size)
        _commit[(layers * slots * heads,)](
            buffer, lengths, count, path, first_slot, slots, heads, *buffer.stride()[:4], path.stride(0),
            SIZE=size, WIDE=wide, TILE_ROWS=tile_rows, num_warps=4,
        )  # fmt: skip
