"""How the tree attention kernel cuts its work: tile shapes and the number of programs per slot and head.

Pure functions of shapes and of two device figures, so that a CUDA graph captured once stays valid for every length.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SPLITS = 64  # the combine kernel holds one partial row per split in registers
_PROGRAMS_PER_SM = 2
_SLACK = 4096  # shared bytes for reductions and layout changes, beside the operands


@dataclass(frozen=True)
class Tile:
    """The compile-time shape of one program.

    Attributes:
        block_m: packed rows (tree rows x query heads of one KV head) per program.
        block_n: cells per loop iteration.
        warps: warps per program.
        stages: K and V tiles in flight.
        min_tiles: a split gets at least this many tiles of ``block_n`` cells, however short the cache is.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    min_tiles: int


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
    widest = max(keys, values)
    if itemsize == 4:
        # Exact fp32 has no matrix unit: its products live in ordinary registers, so the tile is as small as dot allows.
        block_m, block_n, warps, min_tiles = 16, 32, 4, 2
    elif packed <= 32:
        # AR and small trees only stream the cache. One matrix instruction is 16 rows high; less is padded anyway.
        block_m, block_n, warps, min_tiles = (16 if packed <= 16 else 32), 64, 4, 2
    elif packed <= 64:
        # 64 rows are one warp group's matrix instruction.
        block_m, block_n, warps, min_tiles = 64, 64, 4, 4
    else:
        # Every tile of M reads the cache again, from L2: tall tiles halve that. Their partial results are large
        # beside a tile of the cache, hence the longer splits.
        block_m, block_n, warps, min_tiles = 128, 64, 8, 4
    if widest > 128 and block_n == 64:
        block_n = 32  # the same bytes per iteration; the accumulator already takes most registers
    query_bytes = block_m * keys * itemsize
    stage_bytes = block_n * (keys + values) * itemsize
    # Streaming is limited by bytes in flight: two small programs per SM hide each other's start and end.
    budget = shared_bytes // 2 if block_m <= 32 and shared_bytes > 128 * 1024 else shared_bytes
    stages = (budget - _SLACK - query_bytes) // stage_bytes
    return Tile(block_m, block_n, warps, max(1, min(4, stages)), min_tiles)


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
