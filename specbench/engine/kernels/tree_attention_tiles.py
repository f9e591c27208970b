"""How the tree attention kernel cuts its work: tile shapes and the number of programs per slot and head.

Pure functions of shapes and of two device figures, so that a CUDA graph captured once stays valid for every length.
"""

from __future__ import annotations

from dataclasses import dataclass

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
