"""Tree attention by the kernel equals the oracle's dense mask, on random trees and caches.

Without a GPU Triton's interpreter runs the kernel; it multiplies bfloat16 as if it were integers, so halves are float16
there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Visibility
from specbench.engine.kernels.tree_attention import MAX_SPLITS, Tile, splits_for, tile_for, tree_attention
from specbench.engine.ops import ancestors

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}  # of the largest element
TALL = Tile(block_m=64, block_n=64, warps=4, stages=2, min_tiles=1, chunk=256)  # interpreting many tiles is slow
FLAT = Tile(block_m=16, block_n=32, warps=4, stages=1, min_tiles=1, chunk=256)


@dataclass(frozen=True)
class Case:
    """One forward; ``padding`` is how many of the rows belong to no tree."""

    lengths: tuple[int, ...] = (37,)
    rows: int = 5
    padding: int = 0
    kv_heads: int = 1
    group: int = 1
    key_size: int = 16
    value_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    splits: int | None = 1
    tile: Tile | None = None
    chain: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    keys: Tensor
    values: Tensor
    lengths: Tensor
    reach: Tensor
    depth: Tensor

    def call(self, device: str, **options: Any) -> Tensor:
        query, keys, values, lengths, bits, depth = (each.to(device) for each in self.tensors())
        return tree_attention(query, keys, values, lengths, bits, depth, **options).cpu()

    def tensors(self) -> list[Tensor]:
        """The kernel's arguments."""
        return [self.query, self.keys, self.values, self.lengths, words_of(self.reach), self.depth.int()]


def words_of(reach: Tensor) -> Tensor:
    """bool [S, Q, Q] as int32 [S, Q, ceil(Q / 32)], the sign bit included."""
    slots, rows, _ = reach.shape
    words = -(-rows // 32)
    wide = torch.nn.functional.pad(reach, (0, words * 32 - rows)).view(slots, rows, words, 32).long()
    return (wide << torch.arange(32)).sum(-1).to(torch.int32)


def inputs(case: Case) -> Inputs:
    """Random data in the strides of the engine: heads beside each other in a query, slots cut out of a larger cache."""
    draw = torch.Generator().manual_seed(case.seed)
    slots, heads = len(case.lengths), case.kv_heads * case.group
    cells = max(case.lengths) + case.rows + 3

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(case.dtype)

    used = case.rows - case.padding
    parents = torch.arange(case.rows).repeat(slots, 1)
    for row in range(1, used):
        any_before = torch.randint(0, row, (slots,), generator=draw)
        parents[:, row] = row - 1 if case.chain else any_before
    reach = ancestors(parents)
    return Inputs(
        normal(slots, case.rows, heads, case.key_size).transpose(1, 2),
        normal(slots + 1, case.kv_heads, cells, case.key_size)[1:],
        normal(slots + 1, case.kv_heads, cells, case.value_size)[1:],
        torch.tensor(case.lengths, dtype=torch.int32),
        reach,
        reach.sum(-1) - 1,
    )


def oracle(given: Inputs, window: int | None) -> Tensor:
    see = ReferenceAttention(Visibility(given.lengths, given.depth, given.reach, None))
    return see(given.query.float(), given.keys.float(), given.values.float(), None, window)


def check(case: Case, device: str) -> None:
    given = inputs(case)
    want = oracle(given, case.window)
    for buffer in (given.keys, given.values):
        for slot, length in enumerate(case.lengths):
            buffer[slot, :, length + case.rows :] = float("nan" if slot % 2 else "inf")
    got = given.call(device, window=case.window, splits=case.splits, tile=case.tile)
    assert got.is_contiguous()
    assert got.dtype == case.dtype
    assert got.shape == want.shape
    assert (got - want).abs().max() <= TOLERANCE[case.dtype] * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(0, 41), rows=1, key_size=64, value_size=64, group=7, kv_heads=2),
        Case(lengths=(70, 0, 5), rows=9, key_size=80, value_size=80, group=3, padding=2),
        Case(lengths=(64,), rows=17, key_size=128, value_size=64, group=7, tile=TALL, splits=2),
        Case(lengths=(17,), rows=4, key_size=256, value_size=256, group=2, kv_heads=2, splits=2),
    ],
    ids=["ar", "odd-size", "values-differ", "widest"],
)
def test_equals_the_oracle(case: Case, dtype: torch.dtype, device: str) -> None:
    check(replace(case, dtype=dtype), device)


@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
def test_every_word_of_the_mask(chain: bool, device: str) -> None:
    for rows in (1, 2, 31, 32, 33, 64, 65, 70):
        check(Case(lengths=(40, 3), rows=rows, chain=chain, group=2, tile=TALL, seed=rows), device)


@pytest.mark.parametrize("tile", [FLAT, TALL], ids=["flat", "tall"])
def test_many_rows(tile: Tile, device: str) -> None:
    check(Case(lengths=(20,), rows=133, padding=3, tile=tile, splits=2), device)


@pytest.mark.parametrize("splits", [1, 2, 5, 23])
def test_splits_make_no_difference(splits: int, device: str) -> None:
    """Also where splits are left over, and where one begins in the prefix and ends in the tree."""
    for tile in (FLAT, replace(FLAT, min_tiles=3)):
        check(Case(lengths=(130, 0, 31), rows=40, splits=splits, tile=replace(tile, block_m=64)), device)


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (2, 3), (7, 1), (32, 3), (33, 1), (90, 3), (500, 3)])
def test_windows_count_positions_not_cells(window: int, splits: int, device: str) -> None:
    tile = replace(FLAT, block_m=64)
    check(Case(lengths=(90, 4, 0), rows=40, padding=1, window=window, splits=splits, tile=tile), device)
    check(Case(lengths=(90,), rows=40, chain=True, window=window, splits=splits, tile=tile), device)


def test_any_group_of_heads(device: str) -> None:
    for kv_heads, group in ((1, 1), (1, 7), (3, 3), (2, 16)):
        check(Case(lengths=(33,), rows=6, kv_heads=kv_heads, group=group, splits=None), device)


any_case = given(
    lengths=st.lists(st.integers(0, 100), min_size=1, max_size=2).map(tuple),
    rows=st.integers(1, 70),
    padding=st.integers(0, 3),
    group=st.sampled_from([1, 3, 7]),
    key_size=st.sampled_from([16, 24, 48]),
    window=st.none() | st.integers(1, 110),
    splits=st.integers(1, 6),
    seed=st.integers(0, 99),
)


@any_case
@settings(max_examples=2, deadline=None)
def test_any_case(padding: int, rows: int, device: str, **fields: Any) -> None:
    tile = replace(TALL, block_m=256)
    check(Case(rows=rows, padding=min(padding, rows - 1), tile=tile, **fields), device)


@pytest.mark.slow
@any_case
@settings(max_examples=60, deadline=None)
def test_many_cases(padding: int, rows: int, device: str, **fields: Any) -> None:
    tile = replace(TALL, block_m=256)
    check(Case(rows=rows, padding=min(padding, rows - 1), tile=tile, **fields), device)


def test_the_scale_is_a_factor_on_the_scores(device: str) -> None:
    given = inputs(Case())
    scaled = replace(given, query=given.query * 3)
    assert torch.allclose(given.call(device, scale=0.75), scaled.call(device), atol=1e-6)


def test_a_row_that_sees_nothing_is_zero(device: str) -> None:
    given = inputs(Case(lengths=(0,), rows=3))
    for splits in (1, 2):
        blind = replace(given, reach=torch.zeros_like(given.reach)).call(device, splits=splits)
        assert torch.equal(blind, torch.zeros_like(blind))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_capture_serves_every_length() -> None:
    case = Case(lengths=(500, 500), rows=8, kv_heads=2, group=4, key_size=64, value_size=64, splits=4)
    given = inputs(case)
    query, keys, values, length, bits, depth = (each.cuda() for each in given.tensors())
    tree_attention(query, keys, values, length, bits, depth, splits=4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tree_attention(query, keys, values, length, bits, depth, splits=4)
    for lengths in ((500, 1), (0, 77), (256, 255)):
        length.copy_(torch.tensor(lengths))
        graph.replay()
        want = oracle(replace(given, lengths=torch.tensor(lengths)), None)
        assert (got.cpu() - want).abs().max() <= TOLERANCE[torch.float32] * want.abs().max()


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"query": torch.zeros(1, 3, 5, 16)}, {}, "3 query heads cannot share 2"),
        ({"query": torch.zeros(1, 2, 5, 24)}, {}, "does not fit keys"),
        ({"values": torch.zeros(1, 2, 9, 16)}, {}, "does not fit keys"),
        ({"values": torch.zeros(1, 2, 45, 16).half()}, {}, "one dtype"),
        ({"query": torch.zeros(1, 2, 16, 5).transpose(2, 3)}, {}, "contiguous"),
        ({"lengths": torch.zeros(2, dtype=torch.int32)}, {}, "does not fit 1 slots of 5 rows"),
        ({}, {"window": 0}, "window of 0"),
        ({}, {"splits": 0}, "splits must be 1 to 64"),
        ({}, {"splits": MAX_SPLITS + 1}, "splits must be 1 to 64"),
    ],
)
def test_refuses_what_the_kernel_would_misread(change: dict[str, Any], options: dict[str, Any], says: str) -> None:
    given = inputs(Case(kv_heads=2))
    with pytest.raises(ValueError, match=says):
        replace(given, **change).call("cpu", **options)


@pytest.mark.parametrize(
    ("packed", "block_m"), [(1, 16), (16, 16), (17, 32), (33, 64), (64, 64), (65, 128), (4000, 128)]
)
def test_a_tile_is_as_tall_as_the_packed_rows(packed: int, block_m: int) -> None:
    assert tile_for(packed, 128, 128, 2, 227 * 1024).block_m == block_m


@pytest.mark.parametrize(
    ("shape", "splits"),
    [
        ((1, 4, 1, 132, 32768), 64),  # at most 64, though 66 would fill the device
        ((1, 4, 4, 132, 32768), 16),
        ((1, 8, 1, 132, 32768), 33),
        ((1, 8, 1, 132, 1024), 8),  # two tiles of 64 cells each
        ((64, 8, 4, 132, 32768), 1),
        ((1, 1, 1, 132, 16), 1),
    ],
)
def test_splits_fill_the_device_twice(shape: tuple[int, int, int, int, int], splits: int) -> None:
    assert splits_for(*shape, block_n=64) == splits
