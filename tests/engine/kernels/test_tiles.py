"""Tiles and grids of tree attention, on the figures of devices and models that they were thought out for."""

from __future__ import annotations

import random

import pytest

from specbench.engine.kernels.tiles import (
    MAX_SPLITS,
    height_for,
    min_tiles_for,
    most_splits,
    most_tiles,
    programs_each,
    share_for,
    tile_for,
)

# (shared bytes of a program, multiprocessors)
H200, B200, A100, L4 = (227 * 1024, 132), (227 * 1024, 148), (163 * 1024, 108), (99 * 1024, 58)
QWEN25, LLAMA70 = {"group": 7, "kv_heads": 4}, {"group": 8, "kv_heads": 8}


@pytest.mark.parametrize(
    ("rows", "heads", "tall", "multiprocessors", "packed"),
    [
        (1, QWEN25, False, 132, 14),  # two rows of seven heads in sixteen
        (512, QWEN25, False, 132, 14),  # 64 sequences of a short tree each
        (64, {"group": 1, "kv_heads": 8}, False, 132, 16),
        (8, {"group": 40, "kv_heads": 1}, False, 132, 40),  # a row is never divided
        (2, QWEN25, True, 132, 14),
        (4, QWEN25, True, 132, 28),
        (5, QWEN25, True, 132, 63),
        (64, QWEN25, True, 132, 63),
        (512, QWEN25, True, 132, 63),  # 28 tiles of 128 × 4 heads leave 20 of 132 idle
        (512, QWEN25, True, 148, 63),
        (512, QWEN25, True, 108, 126),
        (512, LLAMA70, True, 132, 128),  # 32 × 8
        (256, LLAMA70, True, 132, 64),  # 16 × 8 are 4 short
        (512, LLAMA70, True, 148, 128),
        (4608, QWEN25, True, 148, 126),
    ],
)
def test_a_tile_is_as_tall_as_leaves_enough_of_them(
    rows: int, heads: dict[str, int], tall: bool, multiprocessors: int, packed: int
) -> None:
    assert height_for(rows, tall=tall, multiprocessors=multiprocessors, **heads) * heads["group"] == packed


@pytest.mark.parametrize(
    ("packed", "size", "card", "shape", "each"),
    [
        (16, 128, H200, (16, 64, 4, 4), 2),
        (17, 128, H200, (32, 64, 8, 4), 1),
        (63, 128, H200, (64, 64, 4, 3), 2),
        (65, 128, H200, (128, 64, 8, 4), 1),  # 160 KB, as many as a multiprocessor has for one
        (448, 128, B200, (64, 64, 4, 3), 2),
        (16, 64, H200, (16, 64, 4, 4), 2),
        (16, 128, A100, (16, 64, 4, 3), 2),
        (128, 128, A100, (64, 64, 8, 3), 1),
        (16, 128, L4, (16, 64, 4, 3), 1),
        (128, 128, L4, (64, 64, 8, 3), 1),
        (16, 256, L4, (16, 32, 8, 3), 1),
        (128, 256, A100, (32, 32, 8, 4), 1),
        (128, 256, H200, (64, 32, 8, 4), 1),
    ],
)
def test_a_tile_and_how_many_a_multiprocessor_holds(
    packed: int, size: int, card: tuple[int, int], shape: tuple[int, ...], each: int
) -> None:
    tile = tile_for(packed, size, size, 2, card[0])
    assert (tile.block_m, tile.block_n, tile.warps, tile.stages) == shape
    assert programs_each(tile, size, size, 2, card[0]) == each


def busy(rows: int, context: int, card: tuple[int, int], slots: int = 1, capacity: int = 33000) -> tuple[int, int]:
    """(programs that compute, of how many there is room for) in a step of one tree on Qwen2.5-7B's heads."""
    shared, multiprocessors = card
    kv_heads, group = QWEN25["kv_heads"], QWEN25["group"]
    height = height_for(rows, tall=rows > 2, multiprocessors=multiprocessors, **QWEN25)
    tile = tile_for(height * group, 128, 128, 2, shared)
    programs = programs_each(tile, 128, 128, 2, shared) * multiprocessors
    share, least = share_for(slots, kv_heads, programs), min_tiles_for(slots, kv_heads, multiprocessors)
    most = most_splits(share, capacity, tile.block_n, least)
    tiles = -(-rows // height)
    blocks = -(-context // tile.block_n) + -(-rows // tile.block_n)
    per_split = max(-(-blocks // max(1, min(share // tiles, most))), least)  # as the kernel's plan has it
    return tiles * -(-blocks // per_split) * kv_heads, programs


@pytest.mark.parametrize("card", [H200, B200], ids=["H200", "B200"])
def test_short_caches_keep_a_large_device_busy(card: tuple[int, int]) -> None:
    """After 1,000 tokens of a 7B model: with 128-row tiles, 16 rows kept 20 programs busy, and 128 took two waves."""
    assert busy(1, 1024, card) == (68, 2 * card[1])  # every block of 64 cells is a program's
    found, room = busy(16, 1024, card)
    assert found >= 100
    assert found <= room
    for rows in (64, 128):
        found, room = busy(rows, 1024, card)
        assert card[1] < found <= room, rows
    for rows in (1, 16, 64, 128):  # a long cache fills the device, and no program waits for a second wave
        found, room = busy(rows, 32768, card)
        assert 0.75 * room < found <= room, rows


def test_splits_know_nothing_of_rows_and_fill_the_device() -> None:
    assert share_for(1, 4, 264) == 66
    assert share_for(64, 8, 264) == 1
    assert min_tiles_for(1, 4, 132) == min_tiles_for(32, 4, 132) == 1
    assert min_tiles_for(33, 4, 132) == 2
    assert most_splits(66, 32768, 64, 1) == MAX_SPLITS
    assert most_splits(8, 32768, 64, 2) == 8
    assert most_splits(66, 1100, 64, 1) == 17
    assert most_splits(66, 10, 64, 1) == 1


def test_every_slot_and_the_padding_has_the_tiles_it_needs() -> None:
    rng = random.Random(0)
    for _ in range(500):
        slots, height = rng.randint(1, 9), rng.randint(1, 20)
        counts = [rng.randint(0, 40) for _ in range(slots + 1)]  # the last one's is padding
        if rows := sum(counts):
            assert sum(-(-count // height) for count in counts) <= most_tiles(rows, slots, height)
    assert most_tiles(4, 3, 2) == 4, "three slots and the padding, each within a tile of its own"
    assert most_tiles(7, 1, 7) == 2
