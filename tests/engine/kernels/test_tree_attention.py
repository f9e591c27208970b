"""Tree attention by the kernel equals the oracle's dense mask, on random trees, caches and layouts of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoders import flat, forest
from support.wording import wording
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import LayerAttention, Sight, Visibility
from specbench.engine.kernels import tree_attention as launch
from specbench.engine.kernels.bits import tree_bits_by_torch
from specbench.engine.kernels.tiles import Tile
from specbench.engine.kernels.tree_attention import tree_attention
from specbench.engine.layout import Layout
from specbench.engine.ops import TorchOps

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}  # of the largest element
TALL = Tile(block_m=64, block_n=64, warps=4, stages=2, chunk=256)  # interpreting many tiles is slow
FLAT = Tile(block_m=16, block_n=32, warps=4, stages=1, chunk=256)


@dataclass(frozen=True)
class Case:
    """One forward. ``sizes`` are the rows of each slot, 0 where it has none."""

    lengths: tuple[int, ...] = (37,)
    sizes: tuple[int, ...] = (5,)
    spare: int = 0
    height: int = 16
    kv_heads: int = 1
    group: int = 1
    key_size: int = 16
    value_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: bool = False
    splits: int | None = 1
    tile: Tile | None = None
    joins: bool | None = None
    chain: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    keys: Tensor
    values: Tensor
    layout: Layout
    lengths: Tensor
    bits: Tensor
    depth: Tensor
    reach: Tensor

    def call(self, how: LayerAttention = LayerAttention(), **options: Any) -> Tensor:  # noqa: B008
        return tree_attention(
            self.query, self.keys, self.values, self.layout, self.lengths, self.bits, self.depth, how, **options
        )


def how(case: Case, device: str) -> LayerAttention:
    """Scores are about 1, so the cap is small; the sinks weigh from nothing to more than all keys."""
    sinks = torch.linspace(-3, 6, case.kv_heads * case.group, device=device) if case.sinks else None
    return LayerAttention(None, Sight(case.window, case.chunk), case.softcap, sinks)


def inputs(case: Case, device: str) -> Inputs:
    """Random data with the engine's strides: heads of a query are adjacent, slots are a part of a larger cache."""
    draw = torch.Generator().manual_seed(case.seed)
    slots, heads = len(case.lengths), case.kv_heads * case.group
    cells = max(length + rows for length, rows in zip(case.lengths, case.sizes, strict=True)) + 3

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device, case.dtype)

    sizes = {slot: rows for slot, rows in enumerate(case.sizes) if rows}
    trees = forest(case.seed, sizes)
    if case.chain:
        trees = {slot: TokenTree.chain([0] * rows) for slot, rows in sizes.items()}
    fields = flat(trees, slots, device, spare=case.spare, height=case.height, lengths=case.lengths)
    layout, rows = fields.layout, len(fields.tokens)
    ancestry = TorchOps().ancestry(fields.parents, layout)
    bits, depth = tree_bits_by_torch(fields.parents, layout)
    # Words that are never written may hold any value.
    unused = 32 * torch.arange(bits.shape[1], device=device) >= layout.of_rows(layout.count)[:, None]
    bits[unused | ~layout.real[:, None]] = -1
    return Inputs(
        normal(1, rows, heads, case.key_size).transpose(1, 2),
        normal(slots + 1, case.kv_heads, cells, case.key_size)[1:],
        normal(slots + 1, case.kv_heads, cells, case.value_size)[1:],
        layout,
        fields.lengths,
        bits,
        depth,
        ancestry.rows,
    )


def oracle(given: Inputs, how: LayerAttention) -> Tensor:
    """In fp32, as if nothing were known of the layout."""
    see = ReferenceAttention(Visibility(given.layout, given.lengths, given.depth, given.reach))
    return see(given.query.float(), given.keys.float(), given.values.float(), how)


def check(case: Case, device: str) -> Tensor:
    given = inputs(case, device)
    # Of a slot without rows nothing is read, but the oracle reads all that it then hides.
    want = oracle(given, how(case, device))
    for buffer in (given.keys, given.values):
        for slot, (length, rows) in enumerate(zip(case.lengths, case.sizes, strict=True)):
            buffer[slot, :, length + rows if rows else 0 :] = float("nan" if slot % 2 else "inf")
    got = given.call(how(case, device), splits=case.splits, tile=case.tile, joins=case.joins)
    real = given.layout.real
    assert got.is_contiguous()
    assert got.dtype == case.dtype
    assert got.shape == want.shape
    assert not got[:, ~real].any(), "padding is zeros"
    assert (got - want)[:, real].abs().max() <= TOLERANCE[case.dtype] * want[:, real].abs().max()
    return got


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(0, 41, 9), sizes=(1, 1, 0), key_size=64, value_size=64, group=7, kv_heads=2, height=2, spare=3),
        Case(lengths=(70, 0, 5), sizes=(9, 3, 7), key_size=80, value_size=80, group=3, spare=2, height=5),
        Case(
            lengths=(64,), sizes=(17,), key_size=128, value_size=64, group=7, height=9, tile=TALL, splits=4
        ),
        Case(lengths=(17, 3), sizes=(4, 0), key_size=256, value_size=256, group=2, kv_heads=2, height=8, splits=2),
    ],
    ids=["ar", "odd-size", "values-differ", "widest"],
)  # fmt: skip
def test_equals_the_oracle(case: Case, dtype: torch.dtype, device: str) -> None:
    check(replace(case, dtype=dtype), device)


@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
def test_every_word_of_the_mask(chain: bool, device: str) -> None:
    for rows in (1, 2, 31, 32, 33, 64, 65, 70):
        case = Case(lengths=(40, 3), sizes=(rows, 71 - rows), chain=chain, group=2, height=32, tile=TALL, seed=rows)
        check(case, device)


@pytest.mark.parametrize("tile", [FLAT, TALL], ids=["flat", "tall"])
def test_many_rows(tile: Tile, device: str) -> None:
    check(Case(lengths=(20,), sizes=(130,), spare=3, height=64, tile=tile, splits=6), device)


@pytest.mark.parametrize("splits", [1, 2, pytest.param(5, marks=pytest.mark.slow), 23])
def test_splits_make_no_difference(splits: int, device: str) -> None:
    """Also where splits are left over, where one begins in the prefix and ends in the tree, and between many tiles."""
    for height, joins in ((40, False), (20, True)):
        tile = replace(FLAT, block_m=64)
        check(
            Case(lengths=(130, 0, 31), sizes=(40, 3, 5), splits=splits, height=height, tile=tile, joins=joins), device
        )


def test_splits_are_counted_anew_by_every_launch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []

    def arrivals(keys: Tensor, count: int) -> Tensor:
        if not made:
            made.append(torch.zeros(count, dtype=torch.int32, device=keys.device))
        return made[0]

    monkeypatch.setattr(launch, "_arrivals", arrivals)
    case = Case(lengths=(200, 31), sizes=(9, 3), splits=3, kv_heads=2, joins=True)
    for _ in range(2):  # the second finds what the first has left
        check(case, device)
        assert len(made[0]) == 2 * 2 * 3
        assert not made[0].any()
    made[0].fill_(-1)  # the last split to arrive is not known for the last
    torch.use_deterministic_algorithms(True)  # new memory is NaN: it may hold what the oracle has left in it
    try:
        with pytest.raises(AssertionError):
            check(case, device)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_wide_tile_is_joined_by_a_kernel_of_its_own(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("attend", "combine"):
        monkeypatch.setattr(launch, name, _Told(getattr(launch, name), called, name))
    check(Case(lengths=(130,), sizes=(9,), splits=3, tile=FLAT), device)
    assert called == ["attend"]
    check(Case(lengths=(130,), sizes=(9,), splits=3, tile=TALL), device)
    assert called == ["attend", "attend", "combine"]
    check(Case(lengths=(130,), sizes=(9,), splits=1, tile=TALL), device)
    assert called == ["attend", "attend", "combine", "attend"]


class _Told:
    """A kernel whose launches are noted."""

    def __init__(self, kernel: Any, called: list[str], name: str) -> None:
        self._kernel, self._called, self._name = kernel, called, name

    def __getitem__(self, grid: Any) -> Any:
        self._called.append(self._name)
        return self._kernel[grid]


@pytest.mark.parametrize(("window", "splits"), [(1, 1), (2, 3), (7, 1), (32, 3), (33, 1), (90, 3), (500, 3)])
def test_windows_count_positions_not_cells(window: int, splits: int, device: str) -> None:
    base = Case(window=window, splits=splits, height=64, tile=replace(FLAT, block_m=64))
    check(replace(base, lengths=(90, 4, 0, 2), sizes=(30, 7, 40, 0), spare=1), device)
    check(replace(base, lengths=(90,), sizes=(40,), chain=True), device)


@pytest.mark.parametrize(("chunk", "splits"), [(1, 1), (7, 3), (32, 1), (90, 3), (91, 2), (500, 3)])
def test_chunks_begin_at_multiples_of_their_size(chunk: int, splits: int, device: str) -> None:
    """Also where a path crosses from one chunk into the next."""
    base = Case(chunk=chunk, splits=splits, height=64, tile=replace(FLAT, block_m=64))
    check(replace(base, lengths=(90, 4, 0, 2), sizes=(30, 7, 40, 0), spare=1), device)
    check(replace(base, lengths=(90,), sizes=(40,), chain=True), device)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
@pytest.mark.parametrize(("softcap", "sinks"), [(0.7, False), (None, True), (50.0, True)])
@pytest.mark.parametrize(("splits", "joins", "window"), [(1, None, None), (5, True, 33), (5, False, None)])
def test_capped_scores_and_sinks(
    softcap: float | None,
    sinks: bool,
    splits: int,
    joins: bool | None,
    window: int | None,
    dtype: torch.dtype,
    device: str,
) -> None:
    case = Case(softcap=softcap, sinks=sinks, splits=splits, joins=joins, window=window, dtype=dtype)
    check(replace(case, lengths=(130, 0, 31), sizes=(9, 3, 1), kv_heads=2, group=3, spare=2), device)


def test_any_group_of_heads_whatever_the_height(device: str) -> None:
    for kv_heads, group, height in ((1, 1, 16), (1, 7, 2), (3, 3, 1), (2, 16, 1), (1, 20, 5), (1, 4, 1)):
        case = Case(lengths=(33,), sizes=(6,), kv_heads=kv_heads, group=group, height=height, splits=None, spare=1)
        check(case, device)


any_case = given(
    lengths=st.lists(st.integers(0, 100), min_size=1, max_size=3).map(tuple),
    sizes=st.tuples(st.integers(1, 70), st.integers(0, 30), st.integers(0, 9)),
    spare=st.integers(0, 3),
    height=st.sampled_from([9, 16, 36]),
    group=st.sampled_from([1, 3, 4, 7]),
    key_size=st.sampled_from([16, 24, 48]),
    window=st.none() | st.integers(1, 110),
    softcap=st.sampled_from([None, 1.0]),
    sinks=st.booleans(),
    splits=st.integers(1, 9),
    seed=st.integers(0, 99),
)


def check_any(lengths: tuple[int, ...], sizes: tuple[int, ...], device: str, **fields: Any) -> None:
    sizes = sizes[: len(lengths)]
    if fields["seed"] % 2:
        lengths, sizes = lengths[::-1], sizes[::-1]  # holes come first
    check(Case(lengths=lengths, sizes=sizes, tile=replace(TALL, block_m=256), **fields), device)


@any_case
@settings(max_examples=3, deadline=None)
def test_any_case(device: str, **case: Any) -> None:
    check_any(device=device, **case)


@pytest.mark.slow
@any_case
@settings(max_examples=60, deadline=None)
def test_many_cases(device: str, **case: Any) -> None:
    check_any(device=device, **case)


@pytest.mark.parametrize("splits", [1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
def test_a_row_does_not_depend_on_its_neighbours(splits: int, dtype: torch.dtype, device: str) -> None:
    """The same tree alone, and with other trees of every size before and after it: equal to the last bit."""
    base = Case(lengths=(50, 130, 0), sizes=(0, 21, 0), height=12, group=2, dtype=dtype)
    alone = inputs(base, device)
    expected = alone.call(splits=splits)
    for sizes, spare in (((0, 21, 0), 11), ((3, 21, 30), 4)):
        given, first = inputs(replace(base, sizes=sizes, spare=spare), device), sizes[0]
        rows = slice(first, first + 21)
        # Its own tree and data, in a forward of other rows.
        for name in ("query", "bits", "depth"):
            mine, theirs = getattr(alone, name), getattr(given, name)
            if name == "query":
                theirs[:, :, rows] = mine
            elif name == "bits":
                theirs[rows, : mine.shape[1]] = mine
            else:
                theirs[rows] = mine
        room = given.keys.new_zeros(3, 1, alone.keys.shape[2], 16)
        given = replace(given, keys=room.clone(), values=room.clone())
        given.keys[1], given.values[1] = alone.keys[1], alone.values[1]
        assert torch.equal(given.call(splits=splits)[:, rows], expected)


def test_a_row_that_sees_nothing_is_zero(device: str) -> None:
    given = inputs(Case(lengths=(0,), sizes=(3,)), device)
    for splits in (1, 2):
        blind = replace(given, bits=torch.zeros_like(given.bits)).call(splits=splits)
        assert torch.equal(blind, torch.zeros_like(blind))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_capture_serves_every_length() -> None:
    case = Case(lengths=(500, 500), sizes=(8, 3), kv_heads=2, group=4, key_size=64, value_size=64)
    given = inputs(case, "cuda")
    given.call(splits=4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = given.call(splits=4)
    for lengths in ((500, 1), (0, 77), (256, 255)):
        given.lengths.copy_(torch.tensor(lengths))
        graph.replay()
        want = oracle(given, LayerAttention())
        assert (got - want).abs().max() <= TOLERANCE[torch.float32] * want.abs().max()


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"query": torch.zeros(1, 3, 5, 16)}, {}),
        ({"values": torch.zeros(1, 2, 9, 16)}, {}),
        ({"values": torch.zeros(1, 2, 45, 16).half()}, {}),
        ({"query": torch.zeros(1, 2, 16, 5).transpose(2, 3)}, {}),
        ({"lengths": torch.zeros(2, dtype=torch.int32)}, {}),
        ({}, {"how": LayerAttention(None, Sight(0))}),
        ({}, {"how": LayerAttention(None, Sight(4, 4))}),
        ({}, {"how": LayerAttention(sinks=torch.zeros(3))}),
        ({}, {"splits": 0}),
    ],
)
def test_refuses_what_the_kernel_would_misread(change: dict[str, Any], options: dict[str, Any]) -> None:
    given = inputs(Case(kv_heads=2), "cpu")
    with pytest.raises(ValueError, check=wording):
        replace(given, **change).call(**options)
