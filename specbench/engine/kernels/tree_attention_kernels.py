"""The device code of :mod:`specbench.engine.kernels.tree_attention`: partial softmaxes of splits, and their sum.

Of a short tile the last split to arrive joins them all. Each counts itself in behind a barrier, with the order of a
release and an acquire: whoever finds all others counted sees what they stored. Splits are summed in their own order,
whichever came last. A tall tile's partial results are more than one program should read alone: there a second kernel
does it, with a program for each row.
"""

# ruff: noqa: N803 - the one compile-time argument that all kernels have is upper case

from __future__ import annotations

import triton
import triton.language as tl

from specbench.engine.kernels.bits import UNALIGNED
from specbench.engine.kernels.dependent import wait_for_inputs
from specbench.engine.kernels.sharing import place_of, plan

# In place of -inf where a maximum starts: the difference of two of them is 0 and not NaN, and a row that sees nothing
# of a split leaves a weight of 0.
_LOWEST = tl.constexpr(-1.0e30)
_HIDDEN = tl.constexpr(float("-inf"))


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


@triton.jit(
    do_not_specialize=["slots", "rows", "words", "height", "programs_each", "window", "share", "most"],
    do_not_specialize_on_alignment=UNALIGNED,
)
def attend(
    query,
    keys,
    values,
    firsts,
    counts,
    lengths,
    bits,
    depth,
    out,
    partial,
    maxima,
    totals,
    arrivals,
    scale,
    slots,
    rows,
    words,
    height,
    programs_each,
    window,
    share,
    most,
    q_head,
    q_row,
    k_slot,
    k_head,
    k_cell,
    v_slot,
    v_head,
    v_cell,
    group: tl.constexpr,
    key_size: tl.constexpr,
    value_size: tl.constexpr,
    has_window: tl.constexpr,
    direct: tl.constexpr,
    joins: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    block_v: tl.constexpr,
    block_s: tl.constexpr,
    chunk: tl.constexpr,
    min_tiles: tl.constexpr,
    stages: tl.constexpr,
    PDL: tl.constexpr,
):
    """Packed rows of one tile of one slot and one KV head, over one split of the slot's cells.

    Grid (as many as any layout of the rows needs, KV heads): which program does what follows from the slots' rows and
    lengths, and those that read the same cells are neighbours, for L2's sake. A tile is ``height`` rows of a slot; more
    than ``block_m`` packed rows are shared by ``programs_each`` programs. ``scale`` includes log2(e). A tile with one
    split, as all have with ``direct``, puts its result into ``out`` [N, H, Dv]; else it goes to ``partial``
    fp32 [S, Hkv, share, height x G, Dv] with ``maxima`` and ``totals`` [S, Hkv, share, height x G]. With ``joins`` the
    last split of the tile brings it from there to ``out``; ``arrivals`` int32 [S, Hkv, share] is zero before the launch
    and behind it.
    """
    wait_for_inputs(PDL)
    kv_head = tl.program_id(1)
    heads = tl.num_programs(1) * group
    slot, place = place_of(
        tl.program_id(0), counts, lengths, slots, height, programs_each, window, share, most,
        has_window, block_n, min_tiles, direct, block_s,
    )  # fmt: skip
    at_v = tl.arange(0, block_v)
    in_v = (at_v < value_size)[None, :]
    at_m = tl.arange(0, block_m)
    if slot < 0:  # what is left has the rows that are padding, as far as there are any
        packed = place * block_m + at_m
        mine = -1 - slot + packed // group
        to = out + (mine.to(tl.int64) * heads + kv_head * group + packed % group) * value_size
        zeros = tl.full([block_m, block_v], 0.0, tl.float32).to(out.dtype.element_ty)
        tl.store(to[:, None] + at_v[None, :], zeros, mask=(mine < rows)[:, None] & in_v)
        return
    root, count = tl.load(firsts + slot), tl.load(counts + slot)
    length = tl.load(lengths + slot).to(tl.int32)
    tiles = (count + height - 1) // height * programs_each
    first, prefix_blocks, per_split, splits, room = plan(
        length, count, tiles, window, share, most, has_window, block_n, min_tiles, direct
    )
    split = place // tiles
    tile = place % tiles // programs_each
    packed_from = place % tiles % programs_each * block_m
    begin = tile * height
    if begin + packed_from // group >= count:
        return
    packed = packed_from + at_m
    row = begin + packed // group
    head = packed % group

    alive = packed < tl.minimum(height, count - begin) * group
    at_k = tl.arange(0, block_k)
    at_n = tl.arange(0, block_n)
    q_from = query + (root + row) * q_row + (kv_head * group + head) * q_head
    q = tl.load(q_from[:, None] + at_k[None, :], mask=alive[:, None] & (at_k < key_size)[None, :], other=0.0)
    row_depth = tl.load(depth + root + row, mask=alive, other=0).to(tl.int32)

    # A slot of a long cache, times its stride, passes 2^31; the rows of a step do not.
    k_base = keys + slot.to(tl.int64) * k_slot + kv_head.to(tl.int64) * k_head
    v_base = values + slot.to(tl.int64) * v_slot + kv_head.to(tl.int64) * v_head
    k_at = at_n * k_cell
    v_at = at_n[:, None] * v_cell + at_v[None, :]
    # Parents come before their children: no row of these sees a row behind their last.
    last = begin + tl.minimum((packed_from + block_m - 1) // group, height - 1)
    seen = prefix_blocks + tl.minimum(last, count - 1) // block_n + 1

    start = split * per_split
    acc = tl.full([block_m, block_v], 0.0, tl.float32)
    highest = tl.full([block_m], _LOWEST, tl.float32)
    total = tl.full([block_m], 0.0, tl.float32)

    for block in tl.range(start, tl.minimum(start + per_split, prefix_blocks), num_stages=stages):
        at = first + block * block_n
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

    stop = tl.minimum(start + per_split, seen)
    for block in tl.range(tl.maximum(start, prefix_blocks), stop, num_stages=1):
        column = (block - prefix_blocks) * block_n
        at = length + column
        there = at_n < count - column
        k_tile = k_base + at.to(tl.int64) * k_cell
        products = _products(q, q_from, k_tile, k_at, alive, there, key_size, block_m, block_n, block_k, chunk)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        scores = products * scale
        visible = tl.full([block_m, block_n], 0, tl.int32)
        for part in tl.static_range((block_n + 31) // 32):
            at_word = tl.minimum(column // 32 + part, (count - 1) // 32)  # `there` hides what a last word repeats
            word = tl.load(bits + (root + row) * words + at_word, mask=alive, other=0)
            bit = (word[:, None] >> ((column + at_n) % 32)[None, :]) & 1
            visible = tl.where((at_n // 32 == part)[None, :], bit, visible)
        visible = (visible != 0) & there[None, :]
        if has_window:
            column_depth = tl.load(depth + root + column + at_n, mask=there, other=0).to(tl.int32)
            visible = visible & (column_depth[None, :] > (row_depth - window)[:, None])
        acc, highest, total = _absorb(tl.where(visible, scores, _HIDDEN), v, acc, highest, total)

    stored = alive[:, None] & in_v
    if direct or splits == 1:
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        to = out + ((root + row) * heads + kv_head * group + head) * value_size
        tl.store(to[:, None] + at_v[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        pair = (slot * tl.num_programs(1) + kv_head) * share
        lines = height * group  # of a split
        line = (pair + tile * room + split) * lines + packed
        tl.store(partial + line[:, None] * value_size + at_v[None, :], acc, mask=stored)
        tl.store(maxima + line, highest, mask=alive)
        tl.store(totals + line, total, mask=alive)
        if joins:
            tl.debug_barrier()  # all threads' stores before the count of one of them
            arrived = tl.atomic_add(arrivals + pair + place % tiles, 1, sem="acq_rel", scope="gpu")
            if arrived == splits - 1:
                line = (pair + tile * room) * lines + packed
                acc = tl.full([block_m, block_v], 0.0, tl.float32)
                highest = tl.full([block_m], _LOWEST, tl.float32)
                total = tl.full([block_m], 0.0, tl.float32)
                # Unrolled, so that some loads are under way at a time; past this program's own L1: others stored it.
                for _ in tl.range(0, splits, loop_unroll_factor=8):
                    found = tl.load(maxima + line, mask=alive, other=_LOWEST, cache_modifier=".cg")
                    sums = tl.load(
                        partial + line[:, None] * value_size + at_v[None, :], mask=stored, other=0.0,
                        cache_modifier=".cg",
                    )  # fmt: skip
                    above = tl.maximum(highest, found)
                    fade, weight = tl.exp2(highest - above), tl.exp2(found - above)
                    acc = acc * fade[:, None] + sums * weight[:, None]
                    part = tl.load(totals + line, mask=alive, other=0.0, cache_modifier=".cg")
                    highest, total = above, total * fade + part * weight
                    line += lines
                result = acc / tl.where(total > 0, total, 1.0)[:, None]
                to = out + ((root + row) * heads + kv_head * group + head) * value_size
                tl.store(to[:, None] + at_v[None, :], result.to(out.dtype.element_ty), mask=stored)
                tl.store(arrivals + pair + place % tiles, 0)


@triton.jit(
    do_not_specialize=["slots", "height", "programs_each", "window", "share", "most"],
    do_not_specialize_on_alignment=UNALIGNED,
)
def combine(
    partial,
    maxima,
    totals,
    slot_of,
    firsts,
    counts,
    lengths,
    out,
    slots,
    height,
    programs_each,
    window,
    share,
    most,
    group: tl.constexpr,
    value_size: tl.constexpr,
    has_window: tl.constexpr,
    block_n: tl.constexpr,
    block_c: tl.constexpr,
    block_v: tl.constexpr,
    min_tiles: tl.constexpr,
    PDL: tl.constexpr,
):
    """Joins the splits of one row and query head, ``block_v`` columns of it.

    Grid (N x G, blocks of columns, KV heads); of a tile with one split nothing is left to do. All splits are loaded at
    once, ``block_c`` is as many or more: at one row per program nothing else hides the latency.
    """
    wait_for_inputs(PDL)
    mine = tl.program_id(0) // group
    slot = tl.load(slot_of + mine)
    if slot >= slots:
        return
    count, length = tl.load(counts + slot), tl.load(lengths + slot).to(tl.int32)
    tiles = (count + height - 1) // height * programs_each
    _, _, _, splits, room = plan(
        length, count, tiles, window, share, most, has_window, block_n, min_tiles, False
    )  # fmt: skip
    if splits == 1:
        return
    row, head = mine - tl.load(firsts + slot), tl.program_id(0) % group
    split = tl.arange(0, block_c)
    written = split < splits
    line = (slot.to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * share + row // height * room + split
    line = line * (height * group) + row % height * group + head
    highest = tl.load(maxima + line, mask=written, other=_LOWEST)
    weight = tl.exp2(highest - tl.max(highest, 0))
    total = tl.sum(weight * tl.load(totals + line, mask=written, other=0.0), 0)
    at_v = tl.program_id(1) * block_v + tl.arange(0, block_v)
    in_v = at_v < value_size
    acc = tl.load(partial + (line * value_size)[:, None] + at_v[None, :], mask=written[:, None] & in_v, other=0.0)
    result = tl.sum(acc * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    to = out + ((mine.to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * group + head) * value_size
    tl.store(to + at_v, result.to(out.dtype.element_ty), mask=in_v)
