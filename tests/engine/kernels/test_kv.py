"""Writing a step's rows and moving the accepted ones: overlapping moves, far cells, slices of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from support.decoders import flat
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.kernels.kv import commit_rows, write_kv
from specbench.engine.layout import Layout


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def i32(values: Sequence[int], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def layout_of(counts: Sequence[int], device: str, spare: int = 0) -> Layout:
    """Of so many rows in each slot; none where it is 0."""
    trees = {slot: TokenTree.chain([0] * count) for slot, count in enumerate(counts) if count}
    return flat(trees, len(counts), device, spare=spare).layout


@pytest.mark.parametrize("sizes", [(576, 512), (8, 80)])
def test_rows_land_after_each_slots_length_in_a_slice_of_a_layer(sizes: tuple[int, int], device: str) -> None:
    counts, heads, cells, lengths = [3, 0, 5], 2, 64, [0, 7, 24]
    layout = layout_of(counts, device, spare=2)
    new = [noise(1, heads, 10, size, seed=size).to(device) for size in sizes]
    whole = [noise(2, 5, heads, cells, size, seed=1).to(device) for size in sizes]
    expected = [buffer.clone() for buffer in whole]
    for buffer, rows in zip(expected, new, strict=True):
        buffer[1, 1, :, 0:3], buffer[1, 3, :, 24:29] = rows[0, :, :3], rows[0, :, 3:8]
    write_kv(new[0], new[1], whole[0][1, 1:4], whole[1][1, 1:4], layout, i32(lengths, device))
    assert torch.equal(whole[0], expected[0])
    assert torch.equal(whole[1], expected[1])


def commit(paths: Sequence[Sequence[int]], rows: int, device: str) -> None:
    """Commits ``paths``, one a slot of so many rows; compares every cell."""
    lengths = [3 * slot for slot in range(len(paths))]
    buffers = [noise(2, len(paths), 2, rows + 16, size, seed=size).to(device) for size in (24, 16)]
    expected = [buffer.clone() for buffer in buffers]
    for new, old in zip(expected, buffers, strict=True):
        for slot, (path, length) in enumerate(zip(paths, lengths, strict=True)):
            new[:, slot, :, length : length + len(path)] = old[:, slot, :, [length + row for row in path]]
    by_place = [row for path in paths for row in (*path, *range(len(path), rows))]
    counts = i32([len(path) for path in paths], device)
    commit_rows(buffers, layout_of([rows] * len(paths), device), i32(lengths, device), counts, i32(by_place, device))
    assert torch.equal(buffers[0], expected[0])
    assert torch.equal(buffers[1], expected[1])


@pytest.mark.parametrize(
    "path",
    [
        [0],
        list(range(40)),  # a chain: nothing moves
        [0, *range(2, 40)],  # every cell is the source of the one before it, across tiles
        [*range(20), *range(21, 40)],
        [0, 39],
    ],
    ids=["root", "chain", "shifted by one", "shifted from the middle", "far"],
)
def test_moves_whose_cells_overlap(path: list[int], device: str) -> None:
    commit([path, [0, 1, 5]], 40, device)


def test_a_cache_of_more_than_2_31_elements(device: str) -> None:
    far = 1 << 31  # memory that is never touched costs nothing
    buffer = torch.empty(far + 4096, dtype=torch.int8, device=device).as_strided(
        (1, 2, 1, 8, 16), (4096, far, 128, 16, 1)
    )
    buffer[:] = 0
    new = torch.arange(8 * 16, dtype=torch.int8, device=device).view(1, 1, 8, 16)
    layout, lengths = layout_of([4, 4], device), i32([1, 2], device)
    write_kv(new, new, buffer[0], buffer[0], layout, lengths)
    assert torch.equal(buffer[0, 1, 0, 2:6], new[0, 0, 4:])
    commit_rows([buffer], layout, lengths, i32([2, 2], device), i32([0, 3, 2, 3, 0, 2, 2, 3], device))
    assert torch.equal(buffer[0, 0, 0, 1:3], new[0, 0, [0, 3]])
    assert torch.equal(buffer[0, 1, 0, 2:4], new[0, 0, [4, 6]])
