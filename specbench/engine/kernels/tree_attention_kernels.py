"""The device code of :mod:`specbench.engine.kernels.tree_attention`: partial softmaxes of splits, and their sum."""

from __future__ import annotations

import triton
import triton.language as tl

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
def _products(
    q,
    q_from,
    k_tile,
    k_at,
    alive,
    there,
    key_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    chunk: tl.constexpr,
):
    """fp32 [M, N]: the tile's queries times its keys.

    Args:
        q: [M, block_k], the queries, where one chunk is all of a head.
        q_from: pointers [M] to column 0 of each query.
        k_tile, k_at: pointer to the tile's first key, and the offset [N] of each of its keys from there.
        alive, there: bool [M] and [N], rows that exist.
        chunk: columns taken at a time. Exact fp32 keeps both sides of a product in registers, which a whole head
            overflows; its queries are read again for every tile, from L1.
    """
    if chunk == block_k:
        at = tl.arange(0, block_k)
        k = tl.load(k_tile + k_at[:, None] + at[None, :], mask=there[:, None] & (at < key_size)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    else:
        scores = tl.full([block_m, block_n], 0.0, tl.float32)
        for part in tl.static_range(block_k // chunk):
            at = part * chunk + tl.arange(0, chunk)
            inside = (at < key_size)[None, :]
            few = tl.load(q_from[:, None] + at[None, :], mask=alive[:, None] & inside, other=0.0)
            k = tl.load(k_tile + k_at[:, None] + at[None, :], mask=there[:, None] & inside, other=0.0)
            scores = tl.dot(few, tl.trans(k), scores, input_precision="ieee")
    return scores


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
def attend(
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
    chunk: tl.constexpr,
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
    q_from = q_base + row * q_row + head * q_head
    q = tl.load(q_from[:, None] + at_k[None, :], mask=alive[:, None] & (at_k < key_size)[None, :], other=0.0)
    tree = slot * rows
    row_depth = tl.load(depth + tree + row, mask=alive, other=0).to(tl.int32)

    k_base = keys + slot * k_slot + kv_head * k_head
    v_base = values + slot * v_slot + kv_head * v_head
    k_at = at_n * k_cell
    v_at = at_n[:, None] * v_cell + at_v[None, :]
    in_v = (at_v < value_size)[None, :]

    acc = tl.full([block_m, block_v], 0.0, tl.float32)
    highest = tl.full([block_m], _LOWEST, tl.float32)
    total = tl.full([block_m], 0.0, tl.float32)

    for tile in tl.range(start, tl.minimum(start + per_split, prefix_tiles), num_stages=stages):
        at = first + tile * block_n
        there = at_n < length - at
        k_tile = k_base + at.to(tl.int64) * k_cell
        products = _products(q, q_from, k_tile, k_at, alive, there, key_size, block_m, block_n, block_k, chunk)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        # every row sees every cell of the prefix, so hiding what lies behind it is one addend per column
        scores = products * scale + tl.where(there, 0.0, _HIDDEN)[None, :]
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
        k_tile = k_base + at.to(tl.int64) * k_cell
        products = _products(q, q_from, k_tile, k_at, alive, there, key_size, block_m, block_n, block_k, chunk)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        scores = products * scale
        visible = tl.full([block_m, block_n], 0, tl.int32)
        for part in tl.static_range((block_n + 31) // 32):
            at_word = tl.minimum(column // 32 + part, words - 1)  # behind the last word, `there` hides what is read
            word = tl.load(bits + tree * words + row * words + at_word, mask=alive, other=0)
            bit = (word[:, None] >> ((column + at_n) % 32)[None, :]) & 1
            visible = tl.where((at_n // 32 == part)[None, :], bit, visible)
        visible = (visible != 0) & there[None, :]
        if has_window:
            column_depth = tl.load(depth + tree + column + at_n, mask=there, other=0).to(tl.int32)
            visible = visible & (column_depth[None, :] > (row_depth - window)[:, None])
        acc, highest, total = _absorb(tl.where(visible, scores, _HIDDEN), v, acc, highest, total)

    stored = alive[:, None] & in_v
    if direct:
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        out_base = out + (tree * kv_heads + kv_head) * (group * value_size)
        out_at = (row * (kv_heads * group) + head) * value_size
        tl.store(out_base + out_at[:, None] + at_v[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        line = (pair.to(tl.int64) * splits + split) * (rows * group)
        tl.store(partial + line * value_size + (packed * value_size)[:, None] + at_v[None, :], acc, mask=stored)
        tl.store(maxima + line + packed, highest, mask=alive)
        tl.store(totals + line + packed, total, mask=alive)


@triton.jit(do_not_specialize=["rows", "window", "splits"])
def combine(
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
