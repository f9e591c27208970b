"""Split-KV tree attention over the static cache, in Triton.

The prefix is read once per KV head: the query heads that share it and the rows of the tree are packed into the M side
of the tile (grouped-query packing, as in FlashAttention-2's decoding kernels, arXiv 2307.08691). Its cells are shared
out to several programs whose partial softmaxes a second kernel combines (Flash-Decoding, Dao et al. 2023), because a
decode step has far fewer rows than a GPU has multiprocessors. Only the tree's own cells look at a mask, one bit per
pair of rows.

Nothing here reads the device from the host, so a captured launch serves every cache length.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels.tree_attention_tiles import MAX_SPLITS, Tile, padded_size, splits_for, tile_for

_LOG2_E = math.log2(math.e)
_CPU_SHARED, _CPU_MULTIPROCESSORS = 99 * 1024, 4  # the interpreter has no device to ask
_COMBINE_COLUMNS = 64

# In place of -inf where a maximum starts: the difference of two of them is 0 and not NaN, and a row that sees nothing
# of a split leaves a weight of 0.
_LOWEST = tl.constexpr(-1.0e30)
_HIDDEN = tl.constexpr(float("-inf"))


@triton.jit
def _plan(length, rows, window, splits, has_window: tl.constexpr, block_n: tl.constexpr, min_tiles: tl.constexpr):
    """Divides a slot's cells among its splits: first the prefix in tiles, then the tree's rows in tiles.

    The tree starts a tile of its own, so that its mask words line up with the tile's columns.

    Returns:
        (first, prefix_tiles, tiles, per_split): the first visible cell, tiles of the prefix, tiles in all, tiles per
        split. Both kernels must come to the same answer.
    """
    first = 0
    if has_window:
        first = tl.maximum(length + 1 - window, 0)  # the root sees furthest back, and its depth is 0
    prefix_tiles = (length - first + block_n - 1) // block_n
    tiles = prefix_tiles + (rows + block_n - 1) // block_n
    per_split = tl.maximum((tiles + splits - 1) // splits, min_tiles)
    return first, prefix_tiles, tiles, per_split


@triton.jit
def _absorb(scores, v, acc, highest, total):
    """One step of the online softmax in base 2.

    Args:
        scores: fp32 [M, N], -inf where hidden.
        v: [N, Dv], zero where there is no cell.
        acc, highest, total: fp32 [M, Dv], [M] and [M] so far.
    """
    above = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - above[:, None])
    fade = tl.exp2(highest - above)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return acc, above, total * fade + tl.sum(weights, 1)


@triton.jit(do_not_specialize=["rows", "window", "splits"])
def _attend(
    query,
    keys,
    values,
    lengths,
    bits,
    depth,
    out,
    partial,
    maxima,
    totals,
    scale,
    rows,
    window,
    splits,
    q_slot,
    q_head,
    q_row,
    k_slot,
    k_head,
    k_cell,
    v_slot,
    v_head,
    v_cell,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    has_window: tl.constexpr,
    direct: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    block_v: tl.constexpr,
    min_tiles: tl.constexpr,
    stages: tl.constexpr,
):
    """One M tile of one (slot, KV head) over one split of its cells.

    Grid (M tiles, splits, slots x KV heads): programs that read the same cells are neighbours, for L2's sake. ``scale``
    includes log2(e). With ``direct`` there is one split, and the result goes to ``out`` [S, Q, H, Dv]; else to
    ``partial`` fp32 [S x Hkv, splits, Q x G, Dv] with ``maxima`` and ``totals`` [S x Hkv, splits, Q x G].
    """
    pair = tl.program_id(2)
    split = tl.program_id(1)
    slot = (pair // kv_heads).to(tl.int64)  # a slot of a long cache, times its stride, passes 2^31
    kv_head = (pair % kv_heads).to(tl.int64)
    length = tl.load(lengths + slot).to(tl.int32)
    first, prefix_tiles, tiles, per_split = _plan(length, rows, window, splits, has_window, block_n, min_tiles)
    start = split * per_split
    if start >= tiles:
        return

    packed = tl.program_id(0) * block_m + tl.arange(0, block_m)
    alive = packed < rows * group
    row = packed // group
    head = packed % group
    at_k = tl.arange(0, block_k)
    at_v = tl.arange(0, block_v)
    at_n = tl.arange(0, block_n)
    q_base = query + slot * q_slot + kv_head * group * q_head
    q_at = row.to(tl.int64)[:, None] * q_row + head.to(tl.int64)[:, None] * q_head + at_k[None, :]
    q = tl.load(q_base + q_at, mask=alive[:, None] & (at_k < key_size)[None, :], other=0.0)
    tree = slot * rows
    row_depth = tl.load(depth + tree + row, mask=alive, other=0).to(tl.int32)

    k_base = keys + slot * k_slot + kv_head * k_head
    v_base = values + slot * v_slot + kv_head * v_head
    k_at = at_n[:, None] * k_cell + at_k[None, :]
    v_at = at_n[:, None] * v_cell + at_v[None, :]
    in_k = (at_k < key_size)[None, :]
    in_v = (at_v < value_size)[None, :]

    acc = tl.full([block_m, block_v], 0.0, tl.float32)
    highest = tl.full([block_m], _LOWEST, tl.float32)
    total = tl.full([block_m], 0.0, tl.float32)

    for tile in tl.range(start, tl.minimum(start + per_split, prefix_tiles), num_stages=stages):
        at = first + tile * block_n
        there = at_n < length - at
        k = tl.load(k_base + at.to(tl.int64) * k_cell + k_at, mask=there[:, None] & in_k, other=0.0)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        # every row sees every cell of the prefix, so hiding what lies behind it is one addend per column
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + tl.where(there, 0.0, _HIDDEN)[None, :]
        if has_window:
            near = (at - length + at_n)[None, :] > (row_depth - window)[:, None]
            scores = tl.where(near, scores, _HIDDEN)
        acc, highest, total = _absorb(scores, v, acc, highest, total)

    words = (rows + 31) // 32
    # parents come before their children: no row of this tile sees a row behind its last
    seen = tl.minimum((tl.program_id(0) * block_m + block_m - 1) // group, rows - 1) // block_n + 1
    stop = tl.minimum(start + per_split, prefix_tiles + seen)
    for tile in tl.range(tl.maximum(start, prefix_tiles), stop, num_stages=1):
        column = (tile - prefix_tiles) * block_n
        at = length + column
        there = at_n < rows - column
        k = tl.load(k_base + at.to(tl.int64) * k_cell + k_at, mask=there[:, None] & in_k, other=0.0)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = tl.full([block_m, block_n], 0, tl.int32)
        for part in tl.static_range(block_n // 32):
            at_word = tl.minimum(column // 32 + part, words - 1)  # behind the last word, `there` hides what is read
            word = tl.load(bits + (tree + row) * words + at_word, mask=alive, other=0)
            bit = (word[:, None] >> (at_n % 32)[None, :]) & 1
            visible = tl.where((at_n // 32 == part)[None, :], bit, visible)
        visible = (visible != 0) & there[None, :]
        if has_window:
            column_depth = tl.load(depth + tree + column + at_n, mask=there, other=0).to(tl.int32)
            visible = visible & (column_depth[None, :] > (row_depth - window)[:, None])
        acc, highest, total = _absorb(tl.where(visible, scores, _HIDDEN), v, acc, highest, total)

    stored = alive[:, None] & in_v
    if direct:
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        out_row = ((tree + row) * kv_heads + kv_head) * group + head
        tl.store(out + out_row[:, None] * value_size + at_v[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        at_row = (pair.to(tl.int64) * splits + split) * (rows * group) + packed
        tl.store(partial + at_row[:, None] * value_size + at_v[None, :], acc, mask=stored)
        tl.store(maxima + at_row, highest, mask=alive)
        tl.store(totals + at_row, total, mask=alive)


@triton.jit(do_not_specialize=["rows", "window", "splits"])
def _combine(
    partial,
    maxima,
    totals,
    lengths,
    out,
    rows,
    window,
    splits,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    value_size: tl.constexpr,
    has_window: tl.constexpr,
    block_n: tl.constexpr,
    block_s: tl.constexpr,
    block_v: tl.constexpr,
    min_tiles: tl.constexpr,
):
    """Joins the splits of one packed row, ``block_v`` columns of it. Grid (Q x G, column blocks, slots x KV heads).

    All splits are loaded at once, not one after the other: at one row per program nothing else hides the latency.
    """
    packed = tl.program_id(0)
    pair = tl.program_id(2)
    slot = (pair // kv_heads).to(tl.int64)
    length = tl.load(lengths + slot).to(tl.int32)
    _, _, tiles, per_split = _plan(length, rows, window, splits, has_window, block_n, min_tiles)
    split = tl.arange(0, block_s)
    written = split * per_split < tiles
    written = written & (split < splits)
    at_row = (pair.to(tl.int64) * splits + split) * (rows * group) + packed
    highest = tl.load(maxima + at_row, mask=written, other=_LOWEST)
    share = tl.exp2(highest - tl.max(highest, 0))
    total = tl.sum(share * tl.load(totals + at_row, mask=written, other=0.0), 0)
    at_v = tl.program_id(1) * block_v + tl.arange(0, block_v)
    in_v = at_v < value_size
    acc = tl.load(partial + at_row[:, None] * value_size + at_v[None, :], mask=written[:, None] & in_v, other=0.0)
    result = tl.sum(acc * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    out_row = ((slot * rows + packed // group) * kv_heads + pair % kv_heads) * group + packed % group
    tl.store(out + out_row * value_size + at_v, result.to(out.dtype.element_ty), mask=in_v)


@lru_cache(maxsize=16)
def _figures(device: torch.device) -> tuple[int, int]:
    """(shared bytes that a program may take, multiprocessors)."""
    if device.type != "cuda":
        return _CPU_SHARED, _CPU_MULTIPROCESSORS
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin, properties.multi_processor_count


def tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    bits: Tensor,
    depth: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    splits: int | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Attention of tree rows to their slot's cache and to their ancestors.

    Row i of slot s sees every cell below ``lengths[s]``, and cell ``lengths[s] + j`` where bit j of its mask is set. The
    keys and values of the tree's rows are in those cells already. What lies behind them is never read.

    S slots, Q rows, H query heads, Hkv KV heads (H a multiple of Hkv), L cells, D and Dv head sizes. All on one device;
    one dtype for query, keys and values. Reads nothing back to the host and may be captured in a CUDA graph.

    Args:
        query: [S, H, Q, D], last dimension contiguous.
        keys: [S, Hkv, L, D], last dimension contiguous; ``lengths[s] + Q <= L``, which is not checked.
        values: [S, Hkv, L, Dv], last dimension contiguous.
        lengths: integer [S], cached tokens of each slot.
        bits: int32 [S, Q, ceil(Q / 32)], contiguous. Bit j % 32 of word j // 32 of row i is set when row j is row i or
            one of its ancestors; parents come before their children, so no bit above i is set.
        depth: integer [S, Q], contiguous. A row's depth in its tree; the root's is 0.
        scale: factor on the scores; None is ``D ** -0.5``.
        window: a row sees only keys less than this many positions before it; None is no limit. A position is the cell
            in the cache, and ``lengths + depth`` in the tree.
        splits: programs that share one (slot, KV head, M tile); None asks :func:`splits_for`.
        tile: the shape of a program; None asks :func:`tile_for`.

    Returns:
        [S, Q, H, Dv], contiguous, in the dtype of ``query``.

    Raises:
        ValueError: shapes, strides, dtypes, ``window`` or ``splits`` do not fit.
    """
    slots, heads, rows, key_size = query.shape
    kv_heads, capacity, value_size = keys.shape[1], keys.shape[2], values.shape[3]
    _check(query, keys, values, lengths, bits, depth, window, splits)
    group = heads // kv_heads
    packed = rows * group
    shared_bytes, multiprocessors = _figures(query.device)
    if tile is None:
        tile = tile_for(packed, key_size, value_size, query.element_size(), shared_bytes)
    tiles = -(-packed // tile.block_m)
    if splits is None:
        splits = splits_for(slots, kv_heads, tiles, multiprocessors, capacity, tile.block_n)
    out = query.new_empty(slots, rows, heads, value_size)
    direct = splits == 1
    # With one split the partial buffers are only arguments; `out` stands in, so that nothing is allocated.
    partial = maxima = totals = out
    if not direct:
        lines = slots * kv_heads * splits * packed
        partial, maxima, totals = (
            torch.empty(count, dtype=torch.float32, device=query.device) for count in (lines * value_size, lines, lines)
        )
    shape = {
        "kv_heads": kv_heads,
        "group": group,
        "value_size": value_size,
        "has_window": window is not None,
        "block_n": tile.block_n,
        "min_tiles": tile.min_tiles,
    }
    _attend[(tiles, splits, slots * kv_heads)](
        query,
        keys,
        values,
        lengths,
        bits,
        depth,
        out,
        partial,
        maxima,
        totals,
        (key_size**-0.5 if scale is None else scale) * _LOG2_E,
        rows,
        window or 0,
        splits,
        *query.stride()[:1],
        *query.stride()[1:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        key_size=key_size,
        direct=direct,
        block_m=tile.block_m,
        block_k=padded_size(key_size),
        block_v=padded_size(value_size),
        stages=tile.stages,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **shape,
    )
    if not direct:
        block_v = min(_COMBINE_COLUMNS, padded_size(value_size))
        _combine[(packed, -(-value_size // block_v), slots * kv_heads)](
            partial,
            maxima,
            totals,
            lengths,
            out,
            rows,
            window or 0,
            splits,
            block_s=1 << (splits - 1).bit_length(),
            block_v=block_v,
            num_warps=4 if splits > 16 else 1,
            **shape,
        )
    return out


def _check(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    bits: Tensor,
    depth: Tensor,
    window: int | None,
    splits: int | None,
) -> None:
    """Raises ValueError for what the kernels would misread. Shapes only: values stay on the device."""
    slots, heads, rows, key_size = query.shape
    kv_heads, capacity = keys.shape[1:3]
    if keys.shape != (slots, kv_heads, capacity, key_size) or values.shape[:3] != keys.shape[:3]:
        raise ValueError(f"query {[*query.shape]} does not fit keys {[*keys.shape]} and values {[*values.shape]}")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads")
    if not query.dtype == keys.dtype == values.dtype:
        raise ValueError(f"one dtype is wanted, not {query.dtype}, {keys.dtype} and {values.dtype}")
    if query.stride(-1) != 1 or keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("the last dimension of query, keys and values must be contiguous")
    if lengths.shape != (slots,) or depth.shape != (slots, rows) or bits.shape != (slots, rows, (rows + 31) // 32):
        raise ValueError(
            f"lengths {[*lengths.shape]}, bits {[*bits.shape]} or depth {[*depth.shape]} does not fit {slots} slots"
            f" of {rows} rows"
        )
    if bits.dtype != torch.int32 or not (lengths.is_contiguous() and bits.is_contiguous() and depth.is_contiguous()):
        raise ValueError("bits must be int32, and lengths, bits and depth contiguous")
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} would hide a row from itself")
    if splits is not None and not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits must be 1 to {MAX_SPLITS}, not {splits}")
