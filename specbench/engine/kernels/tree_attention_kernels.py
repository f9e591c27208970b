"""Device code of :mod:`specbench.engine.kernels.tree_attention`: partial softmaxes of splits, and their sum.

For a short tile, the last split to finish joins all splits. Each split increments a counter after a barrier, with
acquire-release ordering, so that the split that finds all others counted sees their stores. Splits are always summed in
the same order, whichever finishes last. A tall tile's partial results are too many for one program: a second kernel
joins them, with a program for each row.
"""

# ruff: noqa: N803 - the one compile-time argument that all kernels have is upper case

from __future__ import annotations

import triton
import triton.language as tl

from specbench.engine.kernels.bits import UNALIGNED
from specbench.engine.kernels.dependent import wait_for_inputs
from specbench.engine.kernels.sharing import first_seen, place_of, plan

# Start of a maximum instead of -inf: the difference of two such values is 0, not NaN, and a row that sees no cell of a
# split gets the weight 0.
_LOWEST = tl.constexpr(-1.0e30)
_HIDDEN = tl.constexpr(float("-inf"))
_LOG2_E = tl.constexpr(1.4426950408889634)


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
    """fp32 [M, N]: products of the tile's queries and keys.

    Args:
        q: [M, block_k], the queries; used if one chunk is a whole head.
        q_from: pointers [M] to column 0 of each query.
        k_tile, k_at: pointer to the tile's first key, and the offset [N] of each of its keys from there.
        alive, there: bool [M] and [N], whether queries and keys exist.
        chunk: columns per product. Exact fp32 keeps both operands in registers, which a whole head would overflow; its
            queries are read again for every tile, from L1.
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
def _capped(products, scale, softcap, capped: tl.constexpr):
    """Scores in base 2; ``scale`` and ``softcap`` include log2(e).

    tanh(x) = 1 - 2 / (exp(2x) + 1), which cancels near 0; there it is its series.
    """
    scores = products * scale
    if capped:
        x = scores / softcap
        square = x * x
        series = x * (1.0 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
        scores = softcap * tl.where(square < 0.0225, series, 1.0 - 2.0 / (tl.exp2(x * (2.0 * _LOG2_E)) + 1.0))
    return scores


@triton.jit
def _with_sink(total, highest, sinks, head, alive, has_sinks: tl.constexpr):
    """Add the weight of a head's sink, which has no value, to the sum of a row's weights."""
    if has_sinks:
        total += tl.exp2(tl.load(sinks + head, mask=alive, other=0.0).to(tl.float32) * _LOG2_E - highest)
    return total


@triton.jit
def _absorb(scores, v, acc, highest, total):
    """Do one step of the online softmax in base 2.

    Args:
        scores: fp32 [M, N], -inf for hidden cells.
        v: [N, Dv], zero for cells that do not exist.
        acc, highest, total: fp32 [M, Dv], [M] and [M], the results so far.
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
    sinks,
    scale,
    softcap,
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
    chunked: tl.constexpr,
    capped: tl.constexpr,
    has_sinks: tl.constexpr,
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
    """Attend from the packed rows of one tile of one slot and KV head to one split of the slot's cells.

    Grid (enough programs for any layout of the rows, KV heads): the slots' rows and lengths determine what each program
    does, and programs that read the same cells are adjacent, so that they share L2. A tile is ``height`` rows of a
    slot; ``programs_each`` programs divide its packed rows if these are more than ``block_m``. ``scale`` and
    ``softcap`` include log2(e); with ``chunked``, ``window`` is the size of chunks. A tile with a single split (always
    with ``direct``) stores its result in ``out`` [N, H, Dv]; other tiles store it in ``partial`` fp32 [S, Hkv, share,
    height x G, Dv] with ``maxima`` and ``totals`` [S, Hkv, share, height x G]. With ``joins`` the last split of a tile
    reads these and writes ``out``; ``arrivals`` int32 [S, Hkv, share] is zero before and after the launch.
    """
    wait_for_inputs(PDL)
    kv_head = tl.program_id(1)
    heads = tl.num_programs(1) * group
    slot, place = place_of(
        tl.program_id(0), counts, lengths, slots, height, programs_each, window, share, most,
        has_window, chunked, block_n, min_tiles, direct, block_s,
    )  # fmt: skip
    at_v = tl.arange(0, block_v)
    in_v = (at_v < value_size)[None, :]
    at_m = tl.arange(0, block_m)
    if slot < 0:  # the remaining programs clear the padding rows, if there are any
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
        length, count, tiles, window, share, most, has_window, chunked, block_n, min_tiles, direct
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
    row_first = first_seen(length + row_depth, window, chunked)

    # A slot times the stride of a long cache can exceed 2^31; offsets of a step's rows cannot.
    k_base = keys + slot.to(tl.int64) * k_slot + kv_head.to(tl.int64) * k_head
    v_base = values + slot.to(tl.int64) * v_slot + kv_head.to(tl.int64) * v_head
    k_at = at_n * k_cell
    v_at = at_n[:, None] * v_cell + at_v[None, :]
    # Parents come before their children: no row of this tile sees a row after the tile's last one.
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
        # every row sees every cell of the prefix, so cells after it are hidden by adding one number per column
        scores = _capped(products, scale, softcap, capped) + tl.where(there, 0.0, _HIDDEN)[None, :]
        if has_window:
            scores = tl.where((at + at_n)[None, :] >= row_first[:, None], scores, _HIDDEN)
        acc, highest, total = _absorb(scores, v, acc, highest, total)

    stop = tl.minimum(start + per_split, seen)
    for block in tl.range(tl.maximum(start, prefix_blocks), stop, num_stages=1):
        column = (block - prefix_blocks) * block_n
        at = length + column
        there = at_n < count - column
        k_tile = k_base + at.to(tl.int64) * k_cell
        products = _products(q, q_from, k_tile, k_at, alive, there, key_size, block_m, block_n, block_k, chunk)
        v = tl.load(v_base + at.to(tl.int64) * v_cell + v_at, mask=there[:, None] & in_v, other=0.0)
        scores = _capped(products, scale, softcap, capped)
        visible = tl.full([block_m, block_n], 0, tl.int32)
        for part in tl.static_range((block_n + 31) // 32):
            at_word = tl.minimum(column // 32 + part, (count - 1) // 32)  # `there` hides bits of a repeated last word
            word = tl.load(bits + (root + row) * words + at_word, mask=alive, other=0)
            bit = (word[:, None] >> ((column + at_n) % 32)[None, :]) & 1
            visible = tl.where((at_n // 32 == part)[None, :], bit, visible)
        visible = (visible != 0) & there[None, :]
        if has_window:
            column_depth = tl.load(depth + root + column + at_n, mask=there, other=0).to(tl.int32)
            visible = visible & ((length + column_depth)[None, :] >= row_first[:, None])
        acc, highest, total = _absorb(tl.where(visible, scores, _HIDDEN), v, acc, highest, total)

    stored = alive[:, None] & in_v
    if direct or splits == 1:
        total = _with_sink(total, highest, sinks, kv_head * group + head, alive, has_sinks)
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        to = out + ((root + row) * heads + kv_head * group + head) * value_size
        tl.store(to[:, None] + at_v[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        pair = (slot * tl.num_programs(1) + kv_head) * share
        lines = height * group  # lines of a split
        line = (pair + tile * room + split) * lines + packed
        tl.store(partial + line[:, None] * value_size + at_v[None, :], acc, mask=stored)
        tl.store(maxima + line, highest, mask=alive)
        tl.store(totals + line, total, mask=alive)
        if joins:
            tl.debug_barrier()  # all threads must have stored before one of them increments the counter
            arrived = tl.atomic_add(arrivals + pair + place % tiles, 1, sem="acq_rel", scope="gpu")
            if arrived == splits - 1:
                line = (pair + tile * room) * lines + packed
                acc = tl.full([block_m, block_v], 0.0, tl.float32)
                highest = tl.full([block_m], _LOWEST, tl.float32)
                total = tl.full([block_m], 0.0, tl.float32)
                # Unrolled, so that several loads are in flight; bypasses L1, since other programs stored the data.
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
                total = _with_sink(total, highest, sinks, kv_head * group + head, alive, has_sinks)
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
    sinks,
    slots,
    height,
    programs_each,
    window,
    share,
    most,
    group: tl.constexpr,
    value_size: tl.constexpr,
    has_window: tl.constexpr,
    chunked: tl.constexpr,
    has_sinks: tl.constexpr,
    block_n: tl.constexpr,
    block_c: tl.constexpr,
    block_v: tl.constexpr,
    min_tiles: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of one row and query head, for ``block_v`` columns.

    Grid (N x G, blocks of columns, KV heads). A tile with one split is already done. All splits are loaded at once
    (``block_c`` is at least their number): with one row per program, nothing else hides the latency.
    """
    wait_for_inputs(PDL)
    mine = tl.program_id(0) // group
    slot = tl.load(slot_of + mine)
    if slot >= slots:
        return
    count, length = tl.load(counts + slot), tl.load(lengths + slot).to(tl.int32)
    tiles = (count + height - 1) // height * programs_each
    _, _, _, splits, room = plan(
        length, count, tiles, window, share, most, has_window, chunked, block_n, min_tiles, False
    )  # fmt: skip
    if splits == 1:
        return
    row, head = mine - tl.load(firsts + slot), tl.program_id(0) % group
    split = tl.arange(0, block_c)
    written = split < splits
    line = (slot.to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * share + row // height * room + split
    line = line * (height * group) + row % height * group + head
    highest = tl.load(maxima + line, mask=written, other=_LOWEST)
    above = tl.max(highest, 0)
    weight = tl.exp2(highest - above)
    total = tl.sum(weight * tl.load(totals + line, mask=written, other=0.0), 0)
    if has_sinks:
        total += tl.exp2(tl.load(sinks + tl.program_id(2) * group + head).to(tl.float32) * _LOG2_E - above)
    at_v = tl.program_id(1) * block_v + tl.arange(0, block_v)
    in_v = at_v < value_size
    acc = tl.load(partial + (line * value_size)[:, None] + at_v[None, :], mask=written[:, None] & in_v, other=0.0)
    result = tl.sum(acc * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    to = out + ((mine.to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * group + head) * value_size
    tl.store(to + at_v, result.to(out.dtype.element_ty), mask=in_v)
