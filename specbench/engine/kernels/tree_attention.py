"""Launch of split-KV tree attention over the static cache, in Triton.

The prefix is read once per KV head and tile: the query heads that share a KV head and the rows of the tree are packed
into the M side of the tile (grouped-query packing, as in FlashAttention-2's decoding kernels, arXiv 2307.08691). Its
cells are divided among several programs (Flash-Decoding, Dao et al. 2023), because a decode step has far fewer rows
than a GPU has multiprocessors. The partial softmaxes of few rows are combined by the program that finishes last, those
of many rows by a second kernel. Only the tree's own cells need a mask, one bit per pair of rows.

The host never reads the device here, so a captured launch serves every cache length and every layout of its rows: grids
depend only on shapes and on two properties of the device.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from triton.runtime import driver

from specbench.engine.attention.interface import LayerAttention
from specbench.engine.kernels import dependent, tiles
from specbench.engine.kernels.bits import OPTIONS
from specbench.engine.kernels.dependent import counters
from specbench.engine.kernels.tiles import Tile, padded_size
from specbench.engine.kernels.tree_attention_kernels import attend, combine
from specbench.engine.layout import Layout

_LOG2_E = math.log2(math.e)
_CPU_SHARED, _CPU_MULTIPROCESSORS = 99 * 1024, 4  # for the interpreter, which has no device to query
_COMBINE_COLUMNS = 64
_FEW_SLOTS = 64  # one compilation serves up to this many slots
# Most packed rows whose splits one program joins. It reads about 60 bytes per cycle: 16 rows of 128 numbers with 16
# splits take a microsecond, which is less than a launch; 64 rows would take four.
_JOINED_ROWS = 16


@lru_cache(maxsize=16)
def _figures(device: torch.device) -> tuple[int, int]:
    """Return (bytes of shared memory that a program may use, multiprocessors)."""
    if device.type != "cuda":
        return _CPU_SHARED, _CPU_MULTIPROCESSORS
    index = torch.cuda.current_device() if device.index is None else device.index
    # from triton, which checks a launch against these numbers
    found = driver.active.utils.get_device_properties(index)
    return found["max_shared_mem"], found["multiprocessor_count"]


def _arrivals(keys: Tensor, count: int) -> Tensor:
    """int32 zeros, separate for each layer's cache; every launch leaves zeros."""
    return counters(keys.device, keys.data_ptr(), count)


def tile_height(rows: int, group: int, tall: bool, device: torch.device, kv_heads: int = 1) -> int:
    """Rows of a tile on a device; the other arguments are those of :func:`tiles.height_for`."""
    return tiles.height_for(rows, group, kv_heads, tall, _figures(device)[1])


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: Layout,
    lengths: Tensor,
    bits: Tensor,
    depth: Tensor,
    how: LayerAttention,
    *,
    splits: int | None = None,
    tile: Tile | None = None,
    joins: bool | None = None,
) -> Tensor:
    """Attend from tree rows to their slot's cache and to their ancestors.

    The i-th row of a slot sees every cell before the slot's length, and the cell ``length + j`` if bit j of its mask is
    set. The keys and values of the tree's rows are already in those cells. Cells after them are never read.

    N rows, S slots, H query heads, Hkv KV heads (H a multiple of Hkv), L cells, D and Dv head sizes. All tensors are on
    one device; query, keys and values have one dtype. Does not wait for the device and may be captured in a CUDA graph.
    A row's result depends on its own slot and on S, L, the heads, the layout's height and the device, but not on rows
    of other slots.

    Args:
        query: [1, H, N, D], last dimension contiguous.
        keys: [S, Hkv, L, D], last dimension contiguous; whether all rows fit in it is not checked.
        values: [S, Hkv, L, Dv], last dimension contiguous.
        layout: layout of the rows, with the height of tiles: the query heads of that many rows of a slot are the work
            of one program, or of several programs if they are too many for one.
        lengths: integer [S], cached tokens of each slot.
        bits: int32 [N, W], contiguous. Bit j % 32 of word j // 32 of a row is set when the j-th row of its slot is this
            row or one of its ancestors; parents come before their children, so no bit above the row's own is set.
        depth: integer [N], contiguous. A row's depth in its tree; a root's is 0.
        how: parameters of the layer's attention. A position is the cell in the cache, and ``length + depth`` in the
            tree. A window and chunks exclude each other.
        splits: programs for one slot and KV head; default from :func:`tiles.share_for`.
        tile: shape of a program; default from :func:`tiles.tile_for`.
        joins: whether the last split of a tile joins all of its splits, rather than a second kernel; by default for
            tiles of few rows.

    Returns:
        [1, N, H, Dv], contiguous, in the dtype of ``query``; zeros for padding.

    Raises:
        ValueError: shapes, strides, dtypes, ``how`` or ``splits`` do not fit, or the layout has no height.
    """
    _check(query, keys, values, layout, lengths, bits, depth, how, splits)
    _, heads, rows, key_size = query.shape
    slots, kv_heads, capacity, value_size = values.shape
    group, height = heads // kv_heads, layout.height
    sizes = key_size, value_size, query.element_size()
    shared_bytes, multiprocessors = _figures(query.device)
    tile = tile or tiles.tile_for(height * group, *sizes, shared_bytes)
    programs = tiles.programs_each(tile, *sizes, shared_bytes) * multiprocessors
    share = splits or tiles.share_for(slots, kv_heads, programs)
    min_tiles = tiles.min_tiles_for(slots, kv_heads, multiprocessors)
    most = tiles.most_splits(share, capacity, tile.block_n, min_tiles)
    programs_each = -(-height * group // tile.block_m)
    out = query.new_empty(1, rows, heads, value_size)
    direct = most == 1
    joins = not direct and (tile.block_m <= _JOINED_ROWS if joins is None else joins)
    # With one split the partial buffers are not used; pass `out` instead of allocating them.
    partial = maxima = totals = arrivals = out
    if joins:
        arrivals = _arrivals(keys, slots * kv_heads * share)
    if not direct:
        lines = slots * kv_heads * share * height * group
        partial, maxima, totals = (
            torch.empty(count, dtype=torch.float32, device=query.device) for count in (lines * value_size, lines, lines)
        )
    # A tile has rows of one slot only, so slots with few rows make more tiles; and a slot may use its share of splits.
    grid = tiles.most_tiles(rows, slots, height) * programs_each + (0 if direct else slots * share)
    by_slot = layout.first, layout.count, lengths
    sinks = out if how.sinks is None else how.sinks
    shape = {
        "height": height,
        "programs_each": programs_each,
        "window": how.sight.most or 0,
        "share": share,
        "most": most,
        "group": group,
        "value_size": value_size,
        "has_window": how.sight.limited,
        "chunked": how.sight.chunk is not None,
        "has_sinks": how.sinks is not None,
        "block_n": tile.block_n,
        "min_tiles": min_tiles,
    }
    launch = {**OPTIONS, **dependent.options(query.device)}
    attend[(grid, kv_heads)](
        query,
        keys,
        values,
        *by_slot,
        bits,
        depth,
        out,
        partial,
        maxima,
        totals,
        arrivals,
        sinks,
        (key_size**-0.5 if how.scale is None else how.scale) * _LOG2_E,
        (how.softcap or 0.0) * _LOG2_E,
        slots,
        rows,
        bits.shape[1],
        q_head=query.stride(1),
        q_row=query.stride(2),
        k_slot=keys.stride(0),
        k_head=keys.stride(1),
        k_cell=keys.stride(2),
        v_slot=values.stride(0),
        v_head=values.stride(1),
        v_cell=values.stride(2),
        key_size=key_size,
        capped=how.softcap is not None,
        direct=direct,
        joins=joins,
        block_m=tile.block_m,
        block_k=padded_size(key_size),
        block_v=padded_size(value_size),
        block_s=max(_FEW_SLOTS, 1 << (slots - 1).bit_length()),
        chunk=min(tile.chunk, padded_size(key_size)),
        stages=tile.stages,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **shape,
        **launch,
    )
    if not (direct or joins):
        block_v = min(_COMBINE_COLUMNS, padded_size(value_size))
        combine[(rows * group, -(-value_size // block_v), kv_heads)](
            partial,
            maxima,
            totals,
            layout.slot,
            *by_slot,
            out,
            sinks,
            slots,
            block_c=1 << (most - 1).bit_length(),
            block_v=block_v,
            num_warps=4 if most > 16 else 1,
            **shape,
            **launch,
        )
    return out


def _check(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: Layout,
    lengths: Tensor,
    bits: Tensor,
    depth: Tensor,
    how: LayerAttention,
    splits: int | None,
) -> None:
    """Raise ValueError for tensors that the kernels would misread; values are on the device and are not checked."""
    one, heads, rows, key_size = query.shape
    slots, kv_heads = keys.shape[:2]
    if one != 1 or keys.shape[3] != key_size or values.shape[:3] != keys.shape[:3]:
        raise ValueError(f"query {[*query.shape]} does not fit keys {[*keys.shape]} and values {[*values.shape]}")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads")
    if not query.dtype == keys.dtype == values.dtype:
        raise ValueError(f"one dtype is wanted, not {query.dtype}, {keys.dtype} and {values.dtype}")
    if query.stride(-1) != 1 or keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("the last dimension of query, keys and values must be contiguous")
    if layout.slot.shape != (rows,) or layout.first.shape != (slots,) or layout.height < 1:
        raise ValueError(
            f"a layout of {len(layout.slot)} rows over {len(layout.first)} slots in tiles of {layout.height} rows does"
            f" not fit {rows} rows over {slots} slots"
        )
    if lengths.shape != (slots,) or depth.shape != (rows,) or bits.shape[:-1] != (rows,):
        raise ValueError(
            f"lengths {[*lengths.shape]}, bits {[*bits.shape]} or depth {[*depth.shape]} does not fit {rows} rows"
            f" over {slots} slots"
        )
    if bits.dtype != torch.int32 or not (lengths.is_contiguous() and bits.is_contiguous() and depth.is_contiguous()):
        raise ValueError("bits must be int32, and lengths, bits and depth contiguous")
    if how.sight.most is not None and how.sight.most < 1:
        raise ValueError(f"a window of {how.sight.most} would hide a row from itself")
    if None not in how.sight:
        raise ValueError("a layer cannot have both a window and chunks here")
    if how.sinks is not None and (how.sinks.shape != (heads,) or not how.sinks.is_contiguous()):
        raise ValueError(f"{heads} contiguous sinks are wanted, not {[*how.sinks.shape]}")
    if splits is not None and splits < 1:
        raise ValueError(f"splits must be 1 or more, not {splits}")
