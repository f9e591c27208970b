"""Shapes of tree attention's tiles, and the number of programs that divide the work, as functions of a few numbers.

These functions do not query a device. Those that decide how a slot's cache is divided (:func:`share_for`,
:func:`min_tiles_for`, :func:`most_splits`) do not depend on the rows of a step: a row's result must not depend on other
rows.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SPLITS = 64  # the combine kernel holds one partial row per split in registers
_RESERVED = 1024  # bytes of shared memory that the system takes for each program in addition
_REGISTERS, _REGISTERS_EACH, _WARP = 65536, 256, 32  # per multiprocessor; most per thread; threads of a warp
# Devices with this much shared memory (227 KB: Hopper, data-centre Blackwell) have matrix units that a whole warp group
# feeds from shared memory. Other devices hold operands in registers, which limits the height of a tile.
_WARP_GROUP_SHARED = 200 * 1024
_SHORT = 16  # rows of one matrix instruction; fewer rows would be padded
_TALL = 64  # rows of one warp group instruction
_TALLEST = 128


@dataclass(frozen=True)
class Tile:
    """Compile-time shape of one program.

    Attributes:
        block_m: packed rows (tree rows x query heads of one KV head) per program.
        block_n: cells per loop iteration.
        stages: K and V tiles in flight.
        chunk: columns of queries and keys in one product.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    chunk: int


def padded_size(size: int) -> int:
    """Columns of a tile for heads of ``size``: a power of two, and at least 16 for matrix units."""
    return max(16, 1 << (size - 1).bit_length())


def height_for(rows: int, group: int, kv_heads: int, tall: bool, multiprocessors: int) -> int:
    """Choose the number of tree rows of a tile.

    A tall tile reads the cache once for more rows but leaves fewer programs, and a tile of 128 packed rows fills a
    multiprocessor alone. So 128 is used only if there are enough such tiles for the device without splitting a cache.

    Args:
        rows: N, rows of the step.
        group: query heads per KV head.
        kv_heads: KV heads.
        tall: whether a slot may have many rows; else it has about one.
        multiprocessors: multiprocessors of the device.
    """
    packed = rows * group
    if not tall or packed <= _SHORT:
        height = _SHORT
    elif packed <= 2 * _SHORT:
        height = 2 * _SHORT
    else:
        height = _TALLEST if packed // _TALLEST * kv_heads >= multiprocessors else _TALL
    return max(1, height // group)


def most_tiles(rows: int, slots: int, height: int) -> int:
    """Most tiles of ``height`` rows that trees of N rows over S slots can need; padding counts as a slot."""
    broken = min(slots + 1, rows)  # slots whose last tile may be incomplete
    return broken + (rows - broken) // height


def tile_for(packed: int, key_size: int, value_size: int, itemsize: int, shared_bytes: int) -> Tile:
    """Choose the tile of a launch.

    Args:
        packed: packed rows of a tile of the layout; several programs divide them if they are more than ``block_m``.
        key_size: head size of queries and keys.
        value_size: head size of values.
        itemsize: bytes per element of queries, keys and values, 4 or 2.
        shared_bytes: shared memory that one program may use on the device.
    """
    keys, values = padded_size(key_size), padded_size(value_size)
    wide = max(keys, values) > 128
    if itemsize == 4:
        # Exact fp32 has no matrix unit: its operands are in ordinary registers, which fit only the smallest tile.
        return Tile(block_m=16, block_n=32, warps=8, stages=1, chunk=min(32, keys))
    groups = shared_bytes >= _WARP_GROUP_SHARED
    little = shared_bytes <= 128 * 1024
    if packed <= _SHORT:
        # Where one program fills a multiprocessor: with 4 warps, wide heads with a window overflow the registers.
        block_m, warps = _SHORT, 8 if wide and little else 4
    elif packed <= 2 * _SHORT or (wide and not groups):
        block_m, warps = 2 * _SHORT, 8  # with 4 warps the accumulator and the queries overflow the registers
    elif packed <= _TALL or packed > _TALLEST or wide or not groups:
        # Several programs per tile: use a size that fits twice. And 128 rows of wide heads overflow the registers.
        block_m, warps = _TALL, 4 if groups and not wide else 8
    else:
        block_m, warps = _TALLEST, 8
    block_n = 32 if wide else 64  # the same bytes per iteration
    by_groups = groups and block_m >= _TALL
    cells = block_n * (keys + values) * itemsize
    fixed = _fixed_bytes(block_m, block_n, keys, itemsize, by_groups)
    # Two programs on a multiprocessor hide each other's start, softmax and end. With 8 warps, their registers would not
    # fit; and with little shared memory, more bytes in flight, which limit streaming, are worth more.
    half = (shared_bytes + _RESERVED) // 2 - _RESERVED
    budget = half if warps == 4 and not little else shared_bytes
    buffers = (budget - fixed) // cells
    most = 3 if block_m == _TALL and not groups else 4  # a fourth stage would not fit its registers
    stages = max(1, min(most, buffers if by_groups else buffers + 1))
    return Tile(block_m, block_n, warps, stages, keys)


def _fixed_bytes(block_m: int, block_n: int, keys: int, itemsize: int, by_groups: bool) -> int:
    """Bytes of shared memory of a program without its buffers of keys and values.

    Warp groups read every stage from shared memory. Other programs copy the newest stage to registers, which frees its
    buffer, but exchange the softmax's weights between warps through shared memory.
    """
    return block_m * keys * itemsize + (0 if by_groups else block_m * block_n * itemsize)


def programs_each(tile: Tile, key_size: int, value_size: int, itemsize: int, shared_bytes: int) -> int:
    """Programs that fit on a multiprocessor at a time, limited by shared memory and by registers."""
    keys, values = padded_size(key_size), padded_size(value_size)
    by_groups = shared_bytes >= _WARP_GROUP_SHARED and tile.block_m >= _TALL and itemsize == 2
    stages = tile.stages if by_groups else tile.stages - 1
    taken = _fixed_bytes(tile.block_m, tile.block_n, keys, itemsize, by_groups)
    taken += stages * tile.block_n * (keys + values) * itemsize
    by_registers = _REGISTERS // (tile.warps * _WARP * _REGISTERS_EACH)
    return max(1, min((shared_bytes + _RESERVED) // (taken + _RESERVED), by_registers))


def share_for(slots: int, kv_heads: int, programs: int) -> int:
    """Programs for one (slot, KV head) of S slots, if ``programs`` fit on the device.

    A slot's tiles divide these programs among them, and each tile divides the cells among its programs: on the device,
    which knows both numbers.
    """
    return max(1, programs // (slots * kv_heads))


def min_tiles_for(slots: int, kv_heads: int, multiprocessors: int) -> int:
    """Least number of cell blocks in a split.

    A split's partial result (fp32, written and read again) should be small compared with the part of the cache that it
    reads. With fewer (slot, KV head) pairs than multiprocessors, idle multiprocessors cost more.
    """
    return 1 if slots * kv_heads < multiprocessors else 2


def most_splits(share: int, capacity: int, block_n: int, min_tiles: int) -> int:
    """Most splits of one tile for any length of its slot: 1 to :data:`MAX_SPLITS`."""
    return max(1, min(share, MAX_SPLITS, capacity // (min_tiles * block_n)))
