"""Split-KV tree attention over the static cache, in Triton: tile shapes, number of programs, launch.

The prefix is read once per KV head: the query heads that share it and the rows of the tree are packed into the M side
of the tile (grouped-query packing, as in FlashAttention-2's decoding kernels, arXiv 2307.08691). Its cells are shared
out to several programs whose partial softmaxes a second kernel combines (Flash-Decoding, Dao et al. 2023), because a
decode step has far fewer rows than a GPU has multiprocessors. Only the tree's own cells look at a mask, one bit per
pair of rows.

Nothing here reads the device from the host, so a captured launch serves every cache length: the tiles are functions of
shapes and of two device figures alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from triton.runtime import driver

from specbench.engine.kernels.tree_attention_kernels import attend, combine

_LOG2_E = math.log2(math.e)
_CPU_SHARED, _CPU_MULTIPROCESSORS = 99 * 1024, 4  # the interpreter has no device to ask
_COMBINE_COLUMNS = 64


@lru_cache(maxsize=16)
def _figures(device: torch.device) -> tuple[int, int]:
    """(shared bytes that a program may take, multiprocessors)."""
    if device.type != "cuda":
        return _CPU_SHARED, _CPU_MULTIPROCESSORS
    index = torch.cuda.current_device() if device.index is None else device.index
    # triton's own figures: what a launch asks for is held against them
    found = driver.active.utils.get_device_properties(index)
    return found["max_shared_mem"], found["multiprocessor_count"]


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

    Row i of slot s sees every cell below ``lengths[s]``, and cell ``lengths[s] + j`` where bit j of its mask is set.
    The keys and values of the tree's rows are in those cells already. What lies behind them is never read.

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
    attend[(tiles, splits, slots * kv_heads)](
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
        *query.stride()[:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        key_size=key_size,
        direct=direct,
        block_m=tile.block_m,
        block_k=padded_size(key_size),
        block_v=padded_size(value_size),
        chunk=min(tile.chunk, padded_size(key_size)),
        stages=tile.stages,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **shape,
    )
    if not direct:
        block_v = min(_COMBINE_COLUMNS, padded_size(value_size))
        combine[(packed, -(-value_size // block_v), slots * kv_heads)](
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


MAX_SPLITS = 64  # the combine kernel holds one partial row per split in registers
_PROGRAMS_PER_SM = 2
_RESERVED = 1024  # shared bytes that the system takes beside each program's
# Devices with this much shared memory (227 KB: Hopper, data-centre Blackwell) are the ones whose matrix unit is fed by
# a whole warp group from shared memory. The others hold operands in registers, which bounds how tall a tile can be.
_WARP_GROUP_SHARED = 200 * 1024


@dataclass(frozen=True)
class Tile:
    """The compile-time shape of one program.

    Attributes:
        block_m: packed rows (tree rows x query heads of one KV head) per program.
        block_n: cells per loop iteration.
        warps: warps per program.
        stages: K and V tiles in flight.
        min_tiles: a split gets at least this many tiles of ``block_n`` cells, however short the cache is.
        chunk: columns of queries and keys that one product takes at a time.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    min_tiles: int
    chunk: int


def padded_size(size: int) -> int:
    """Columns of a tile that holds heads of ``size``: tile sides are powers of two, and matrix units want 16."""
    return max(16, 1 << (size - 1).bit_length())


def tile_for(packed: int, key_size: int, value_size: int, itemsize: int, shared_bytes: int) -> Tile:
    """The tile of a launch.

    Args:
        packed: tree rows times query heads per KV head.
        key_size: head size of queries and keys.
        value_size: head size of values.
        itemsize: bytes per element of queries, keys and values, 4 or 2.
        shared_bytes: shared memory that one program may take on the device.
    """
    keys, values = padded_size(key_size), padded_size(value_size)
    wide = max(keys, values) > 128
    if itemsize == 4:
        # Exact fp32 has no matrix unit: its operands live in ordinary registers, and only the smallest tile fits them.
        return Tile(block_m=16, block_n=32, warps=8, stages=1, min_tiles=2, chunk=min(32, keys))
    groups = shared_bytes >= _WARP_GROUP_SHARED
    if packed <= 16:
        block_m, warps = 16, 4  # AR: one matrix instruction is 16 rows high, less would be padded anyway
    elif packed <= 32 or (wide and not groups):
        block_m, warps = 32, 8  # with 4 warps the accumulator and the queries overflow the registers
    elif packed <= 64 or not groups:
        block_m, warps = 64, 4 if groups else 8  # 64 rows by 4 warps are one warp group's instruction
    else:
        block_m, warps = 128, 8  # every tile of M reads the cache again, from L2: tall tiles halve that
    block_n = 32 if wide else 64  # the same bytes per iteration
    # A split's partial result (fp32, written and read again) should stay small beside the cache it has read.
    min_tiles = 2 if block_m <= 32 else 4
    by_groups = groups and block_m >= 64
    # Warp groups read every stage in shared memory. The others copy the newest to registers, which frees it, but hand
    # the softmax's weights from warp to warp through shared memory.
    beside = block_m * keys * itemsize + (0 if by_groups else block_m * block_n * itemsize)
    # Two programs on a multiprocessor hide each other's start, softmax and end. With 8 warps their registers would not
    # fit, and where shared memory is small the bytes in flight, which bound streaming, are worth more.
    half = (shared_bytes + _RESERVED) // 2 - _RESERVED
    budget = half if warps == 4 and shared_bytes > 128 * 1024 else shared_bytes
    buffers = (budget - beside) // (block_n * (keys + values) * itemsize)
    most = 3 if block_m == 64 and not groups else 4  # a fourth is what its registers no longer fit
    stages = max(1, min(most, buffers if by_groups else buffers + 1))
    return Tile(block_m, block_n, warps, stages, min_tiles, keys)


def splits_for(slots: int, kv_heads: int, tiles: int, multiprocessors: int, capacity: int, block_n: int) -> int:
    """Programs that share the cache of one (slot, KV head, M tile).

    Known at capture: what a step does not need, because its cache is still short, ends at once on the device.

    Args:
        slots: sequences in the forward.
        kv_heads: KV heads.
        tiles: M tiles of the packed rows.
        multiprocessors: of the device.
        capacity: cells per slot.
        block_n: cells per loop iteration.

    Returns:
        At least 1, at most :data:`MAX_SPLITS`, and never so many that a full cache gives a split under two tiles.
    """
    wanted = _PROGRAMS_PER_SM * multiprocessors // (slots * kv_heads * tiles)
    return max(1, min(wanted, capacity // (2 * block_n), MAX_SPLITS))
