"""Writing a step's rows and moving the accepted ones, against indexing in torch. Every cell is compared."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.kernels.kv import commit_rows, write_kv


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def i32(values: Sequence[int] | Sequence[Sequence[int]], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "sizes"), [(1, (64, 64)), (5, (24, 16)), (40, (8, 80)), (3, (576, 512))])
def test_rows_land_behind_each_slots_length(rows: int, sizes: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    slots, heads, cells, lengths = 3, 2, 64, [0, 7, 24]
    # as a model gives them: [S, Q, heads, size] with heads and rows swapped
    new = [noise(slots, rows, heads, size, dtype=dtype, seed=size).transpose(1, 2).to(device) for size in sizes]
    # as the engine gives them: a layer's slots 1 .. 3 of a buffer of five
    whole = [noise(2, slots + 2, heads, cells, size, dtype=dtype, seed=1).to(device) for size in sizes]
    expected = [buffer.clone() for buffer in whole]
    for buffer, rows_of in zip(expected, new, strict=True):
        for slot, length in enumerate(lengths):
            buffer[1, slot + 1, :, length : length + rows] = rows_of[slot]
    write_kv(new[0], new[1], whole[0][1, 1:4], whole[1][1, 1:4], i32(lengths, device))
    assert torch.equal(whole[0], expected[0])
    assert torch.equal(whole[1], expected[1])


def commit(paths: Sequence[Sequence[int]], rows: int, device: str, *, seed: int = 0) -> None:
    """Commits ``paths``, one a slot, in buffers of five slots from slot 2 on; compares every cell."""
    lengths = [3 * slot for slot in range(len(paths))]
    buffers = [noise(2, 5, 2, rows + 16, size, seed=seed + size).to(device) for size in (24, 16)]
    expected = [buffer.clone() for buffer in buffers]
    for new, old in zip(expected, buffers, strict=True):
        for slot, (path, length) in enumerate(zip(paths, lengths, strict=True)):
            moved = old[:, slot + 2, :, [length + row for row in path]]
            new[:, slot + 2, :, length : length + len(path)] = moved
    whole = [[*path, *range(len(path), rows)] for path in paths]
    commit_rows(buffers, 2, i32(lengths, device), i32([len(path) for path in paths], device), i32(whole, device))
    assert torch.equal(buffers[0], expected[0])
    assert torch.equal(buffers[1], expected[1])


@settings(max_examples=20, deadline=None)
@given(data=st.data(), rows=st.integers(1, 40), slots=st.integers(1, 3), seed=st.integers(0, 99))
def test_accepted_rows_move_together(device: str, data: st.DataObject, rows: int, slots: int, seed: int) -> None:
    taken = st.sets(st.integers(0, rows - 1)).map(lambda chosen: sorted({0, *chosen}))
    commit([data.draw(taken) for _ in range(slots)], rows, device, seed=seed)


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


def test_nothing_is_moved_where_nothing_was_accepted(device: str) -> None:
    buffer = noise(1, 1, 1, 8, 4).to(device)
    before = buffer.clone()
    commit_rows([buffer], 0, i32([2], device), i32([0], device), i32([[0, 1, 2]], device))
    assert torch.equal(buffer, before)


def test_a_cache_of_more_than_2_31_elements(device: str) -> None:
    far = 1 << 31  # memory that is never touched costs nothing
    buffer = torch.empty(far + 4096, dtype=torch.int8, device=device).as_strided(
        (1, 2, 1, 8, 16), (4096, far, 128, 16, 1)
    )
    buffer[:] = 0
    new = torch.arange(2 * 4 * 16, dtype=torch.int8, device=device).view(2, 1, 4, 16)
    lengths = i32([1, 2], device)
    write_kv(new, new, buffer[0], buffer[0], lengths)
    assert torch.equal(buffer[0, 1, 0, 2:6], new[1, 0])
    commit_rows([buffer], 0, lengths, i32([2, 2], device), i32([[0, 3, 2, 3], [0, 2, 2, 3]], device))
    assert torch.equal(buffer[0, 0, 0, 1:3], new[0, 0, [0, 3]])
    assert torch.equal(buffer[0, 1, 0, 2:4], new[1, 0, [0, 2]])


def test_rows_that_are_not_contiguous_are_refused(device: str) -> None:
    turned = torch.zeros(1, 1, 4, 4, device=device).transpose(2, 3)
    good, one = torch.zeros(1, 1, 4, 4, device=device), i32([0], device)
    with pytest.raises(ValueError, match="contiguous"):
        write_kv(good, turned, good, good, one)
    with pytest.raises(ValueError, match="contiguous"):
        commit_rows([turned[None]], 0, one, one, i32([[0, 1]], device))
