"""Which backend a step gets, and flash-attn's call with a stand-in that follows its documented semantics."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.decoders import random_tree
from support.models import attached, prompt, supported
from support.wording import wording
from torch import Tensor

from specbench.common.errors import EnvironmentRefused
from specbench.decoding.tree import TokenTree
from specbench.engine import fast_paths
from specbench.engine.attention import backends, choice, flash
from specbench.engine.attention.backends import ReferenceAttention, causal_mask
from specbench.engine.attention.choice import Attentions
from specbench.engine.attention.flash import FlashAttention
from specbench.engine.attention.interface import LayerAttention, Sight, Visibility
from specbench.engine.ops import TorchOps
from specbench.engine.pack import Batch, Shape, fill, split

ROW, CHAIN, TREE = TokenTree.chain([1]), TokenTree.chain([1, 2, 3]), TokenTree([1, 2, 3], [-1, 0, 0])


def with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    cache_batch_idx: Tensor,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """flash_attn_with_kvcache as documented: [batch, rows, heads, size], the mask aligned to the bottom right."""
    assert causal
    assert cache_seqlens.dtype is cache_batch_idx.dtype is torch.int32
    k_cache, v_cache = k_cache[cache_batch_idx], v_cache[cache_batch_idx]
    rows, cells = q.shape[1], k_cache.shape[1]
    last = cache_seqlens[:, None] - rows + torch.arange(rows)  # the last cell that each row sees
    cell = torch.arange(cells)
    visible = cell <= last[:, :, None]
    if window_size[0] >= 0:
        visible &= cell >= last[:, :, None] - window_size[0]
    group = q.shape[2] // k_cache.shape[2]
    k, v = (each.repeat_interleave(group, dim=2) for each in (k_cache, v_cache))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (softmax_scale or q.shape[3] ** -0.5)
    weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


# What else the two take by name.
ALSO_3 = (
    "k v qv rotary_cos rotary_sin cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens "
    "q_descale k_descale v_descale attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa "
    "sm_margin return_softmax_lse"
)
ALSO_4 = (
    "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k learnable_sink softcap num_splits pack_gqa deterministic "
    "return_lse"
)


def with_kvcache_3(q: Tensor, k_cache: Tensor, v_cache: Tensor, **named: Any) -> Tensor:
    """The function of that name in flash-attn 3, of the same meaning."""
    how = {name: value for name, value in named.items() if name not in ALSO_3.split()}
    return with_kvcache(q, k_cache, v_cache, **{"softmax_scale": None, "window_size": (-1, -1), **how})


def varlen_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqused_k: Tensor,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """flash_attn.cute's function: queries of a batch, and keys of it or, by a table, the pages of each sequence."""
    assert named.keys() <= {*ALSO_4.split()}
    assert seqused_k.dtype is torch.int32
    if page_table is None:
        assert len(q) == len(k)
        slots = torch.arange(len(k), dtype=torch.int32)
    else:
        assert page_table.dtype is torch.int32
        assert page_table.shape == (len(q), 1)
        assert page_table.is_contiguous()
        slots = page_table[:, 0]
    left, right = window_size
    old = (-1, -1) if left is None else (left, right or 0)
    how: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "window_size": old}
    return with_kvcache(q, k, v, cache_seqlens=seqused_k, cache_batch_idx=slots, **how), None


FAKES: dict[str, Any] = {
    "flash": SimpleNamespace(flash_attn_with_kvcache=with_kvcache),
    "flash3": SimpleNamespace(flash_attn_with_kvcache=with_kvcache_3),
    "flash4": SimpleNamespace(flash_attn_varlen_func=varlen_4),
}


def seen(counts: dict[int, int], lengths: list[int], spare: int = 0) -> Visibility:
    """Chains of so many rows in some of the slots."""
    shape = Shape(sum(counts.values()) + spare, len(lengths))
    batch = Batch.of({slot: TokenTree.chain([0] * count) for slot, count in counts.items()})
    packed = np.empty(shape.width_in, dtype=np.int32)
    fill(packed, shape, batch, lengths)
    fields = split(torch.from_numpy(packed), shape, batch.groups(lengths))
    ancestry = TorchOps().ancestry(fields.parents, fields.layout)
    return Visibility(fields.layout, fields.lengths, ancestry.depth, ancestry.rows)


@pytest.mark.parametrize("name", FAKES)
@pytest.mark.parametrize("window", [None, 3, 40])
@pytest.mark.parametrize(
    ("counts", "spare"),
    [({1: 1}, 0), ({1: 5}, 0), ({2: 5}, 3), ({0: 1, 2: 1}, 0), ({2: 1, 0: 1, 1: 1}, 5)],
    ids=["row", "chain", "padded-chain", "one-row-each", "padded-rows"],
)
def test_flash_attends_as_the_oracle_does_on_chains(
    name: str, counts: dict[int, int], spare: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, flash.VERSIONS[name].module, FAKES[name])
    torch.manual_seed(0)
    heads, kv_heads, size, cells = 6, 2, 16, 40
    see, rows = seen(counts, [0, 17, 9], spare), sum(counts.values())
    query = torch.randn(1, heads, rows + spare, size)
    key, value = torch.randn(3, kv_heads, cells, size), torch.randn(3, kv_heads, cells, size)
    how = LayerAttention(0.3, Sight(window))
    ours = FlashAttention(see, one_row_each=rows == len(counts), name=name)(query, key, value, how)
    theirs = ReferenceAttention(see)(query, key, value, how)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours[:, :rows], theirs[:, :rows])


@pytest.mark.parametrize("window", [None, 3, 40])
def test_rows_that_only_the_device_knows_attend_as_those_that_the_host_knows(window: int | None) -> None:
    torch.manual_seed(0)
    see = seen({0: 2, 1: 2, 3: 6, 4: 1}, [0, 17, 9, 30, 12], spare=4)
    blind = replace(see, layout=replace(see.layout, groups=None))
    query = torch.randn(1, 6, 15, 16)
    key, value = torch.randn(5, 2, 50, 16), torch.randn(5, 2, 50, 16)
    how = LayerAttention(None, Sight(window))
    known, found = (ReferenceAttention(each)(query, key, value, how) for each in (see, blind))
    torch.testing.assert_close(found[:, :11], known[:, :11])
    assert not known[:, 11:].any()
    assert found.isfinite().all()


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("length", [0, 7])
def test_a_prompt_without_a_mask_attends_as_with_one(length: int, window: int | None) -> None:
    torch.manual_seed(0)
    see = seen({1: 6}, [3, length])
    (group,) = see.layout.groups or ()
    group = group._replace(causal=True)
    bare = replace(see, layout=replace(see.layout, groups=(group,)))
    query, key, value = torch.randn(1, 6, 6, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    how = LayerAttention(None, Sight(window))
    with_mask, without = (ReferenceAttention(each)(query, key, value, how) for each in (see, bare))
    torch.testing.assert_close(without, with_mask)
    assert (causal_mask(group, how, query) is not None) == (length == 0 and window != 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [True, False], ids=["chain", "tree"])
def test_a_prefill_on_a_gpu_gets_a_fused_kernel(
    causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch has none there for a dense mask with grouped heads: then all scores would be written to memory."""
    found: list[tuple[Any, int, int, bool]] = []

    def watched(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Any, enable_gqa: bool, **_: Any) -> Tensor:
        found.append((attn_mask, query.shape[1], key.shape[1], enable_gqa))
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    see = seen({1: 6}, [3, 7])
    (group,) = see.layout.groups or ()
    see = replace(see, layout=replace(see.layout, groups=(group._replace(causal=causal),)))
    query, key = torch.zeros(1, 6, 6, 16, dtype=dtype), torch.zeros(2, 2, 20, 16, dtype=dtype)
    ReferenceAttention(see)(query, key, key, LayerAttention())
    ((mask, heads, kv_heads, grouped),) = found
    if causal:
        assert isinstance(mask, backends.CausalBias)
        assert (mask.seq_len_q, mask.seq_len_kv) == (6, 13)
    flash = causal and dtype is torch.bfloat16
    assert (heads == kv_heads, grouped) == (not flash, flash)


def model(device: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    return SimpleNamespace(device=torch.device(device), dtype=dtype)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which packages there are."""

    def only(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in names else None)
        monkeypatch.setattr(choice, "interpreted", lambda: False)
        monkeypatch.setattr(fast_paths, "_launch_fault", lambda device: "")
        monkeypatch.setattr(flash, "flash_fault", lambda *asked: "")

    return only


def test_auto_is_the_oracle_on_a_cpu_and_the_kernels_on_a_gpu(installed: Callable[..., None]) -> None:
    installed("triton")
    here, there = Attentions("auto", model("cpu", torch.float32)), Attentions("auto", model("cuda"))
    assert (here.of([TREE]), here.of([CHAIN])) == (("reference", False), ("reference", False))
    assert wording(here.report()["why"])
    assert (there.of([TREE])[0], there.of([CHAIN])[0]) == ("triton", "triton")


@pytest.mark.parametrize(("rival", "winner"), [(1.0, "flash"), (3.0, "triton")])
def test_auto_takes_flash_for_chains_where_a_step_is_faster_with_it(
    installed: Callable[..., None], rival: float, winner: str
) -> None:
    installed("triton", "flash_attn")
    found = Attentions("auto", model("cuda"))
    assert found.of([CHAIN])[0] == "triton"  # until something is measured
    found.choose({"triton": 2.0, "flash": rival}.__getitem__)
    kinds = ([CHAIN], [ROW, ROW], [TREE], [CHAIN, TREE], [CHAIN, CHAIN])
    assert [found.of(trees)[0] for trees in kinds] == [winner, winner, "triton", "triton", "triton"]
    assert {steps.attention for steps in found.steps(1, 4)} == {winner}
    assert {steps.attention for steps in found.steps(9, 4)} == {winner, "triton"}
    loser = "triton" if winner == "flash" else "flash"
    assert f"{max(2.0, rival) / min(2.0, rival):.2f} × {loser}" in found.report()["why"]


@pytest.mark.parametrize(
    ("seconds", "winner"),
    [
        ({"triton": 1.000, "flash": 0.999, "flash3": 0.98, "flash4": 0.972}, "triton"),
        ({"triton": 0.999, "flash": 1.000, "flash3": 1.0, "flash4": 1.0}, "triton"),
        ({"triton": 1.0, "flash": 0.9, "flash3": 0.89, "flash4": 0.899}, "flash"),
        ({"triton": 1.0, "flash": 0.9, "flash3": 0.8, "flash4": 0.799}, "flash3"),
        ({"triton": 1.0, "flash": 1.2, "flash3": 0.8, "flash4": 0.7}, "flash4"),
    ],
)
def test_timing_noise_changes_no_attention(
    installed: Callable[..., None], seconds: dict[str, float], winner: str
) -> None:
    installed("triton", "flash_attn", "flash_attn_interface", "flash_attn.cute")
    found = Attentions("auto", model("cuda"))
    found.choose(seconds.__getitem__)
    assert found.of([CHAIN])[0] == winner
    assert found.report()["one_row_s"] == seconds


def test_a_rival_is_tried_by_itself_and_left_out_alone(installed: Callable[..., None]) -> None:
    installed("triton", "flash_attn", "flash_attn_interface", "flash_attn.cute")
    found = Attentions("auto", model("cuda"))

    def seconds(name: str) -> float:
        if name == "flash3":
            raise RuntimeError("no kernel image is available")
        return {"triton": 2.0, "flash": 1.5, "flash4": 1.0}[name]

    found.choose(seconds)
    assert found.of([CHAIN])[0] == "flash4"
    assert found.report()["one_row_s"] == {"triton": 2.0, "flash": 1.5, "flash4": 1.0}
    assert [(flash.VERSIONS["flash3"].title in note, "no kernel image" in note) for note in found.notes] == [
        (True,) * 2
    ]


def test_a_rival_that_cannot_be_imported_is_noted(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("triton", "flash_attn", "flash_attn_interface")
    monkeypatch.setattr(flash, "flash_fault", lambda name, *_: "ImportError: undefined symbol" * (name == "flash"))
    found = Attentions("auto", model("cuda"))
    assert ["undefined symbol" in note for note in found.notes] == [True]
    found.choose({"triton": 2.0, "flash3": 1.0}.__getitem__)
    assert found.of([CHAIN])[0] == "flash3"
    with pytest.raises(EnvironmentRefused, check=wording):
        Attentions("flash", model("cuda"))


@pytest.mark.parametrize("name", ["flash3", "flash4"])
def test_prompts_go_by_a_later_flash_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    fake_function = vars(FAKES[name])[flash.VERSIONS[name].function]

    def watched(q: Tensor, *args: Any, **named: Any) -> Any:
        asked.append(q.shape[1])
        return fake_function(q, *args, **named)

    fake = SimpleNamespace(**{flash.VERSIONS[name].function: watched})
    monkeypatch.setitem(sys.modules, flash.VERSIONS[name].module, fake)
    ids = prompt(11, 97)
    texts = []
    for chain in ("reference", name):
        with attached(supported("llama"), slots=2, capacity=40, max_rows=4, native=False) as engine:
            engine.attentions.chain = chain
            first = engine.alloc()
            slot = engine.alloc()  # not the first
            result = engine.prefill(slot, ids)
            drafted = engine.prefill(slot, ids[:3], TokenTree([ids[2], 5, 6], [-1, 0, 0], accept=[True, False, False]))
            prefilled = set(asked)
            engine.prefill(first, ids)
            stepped = engine.step({first: ROW, slot: ROW})
            texts.append([*result.emitted, *drafted.next_tokens, *stepped[first].emitted, *stepped[slot].emitted])
    assert texts[0] == texts[1]
    assert prefilled == {11}  # the tree is none of its business
    assert set(asked) == {11, 1}


def test_a_resumed_run_attends_to_chains_as_it_did(installed: Callable[..., None]) -> None:
    installed("triton", "flash_attn")
    for before in ("flash", "triton"):
        found = Attentions("auto", model("cuda"))
        found.keep(before)
        found.choose({"triton": 1.0, "flash": 1.0}.__getitem__)
        assert found.of([CHAIN])[0] == before
    installed("triton")
    found = Attentions("auto", model("cuda"))
    found.keep("flash")  # which is no longer installed
    assert found.of([CHAIN])[0] == "triton"


def test_nothing_measured_chooses_where_the_text_must_be_the_same(installed: Callable[..., None]) -> None:
    installed("triton", "flash_attn")
    found = Attentions("auto", model("cuda"), pinned=True)
    found.choose({"triton": 2.0, "flash": 1.0}.__getitem__)
    assert found.of([CHAIN])[0] == "triton"
    backends_: list[Any] = [each.backend("triton") for each in (found, Attentions("auto", model("cuda")))]
    assert [each.keywords["splits"] for each in backends_] == [choice._PINNED_SPLITS, None]


@pytest.mark.parametrize(
    ("asked", "there", "device", "dtype", "words"),
    [
        ("triton", (), "cuda", torch.bfloat16, "triton, which is not installed"),
        ("triton", ("triton",), "cpu", torch.float32, "needs a CUDA device"),
        ("triton", ("triton",), "cuda", torch.float64, "has no float64"),
        ("flash", ("triton",), "cuda", torch.bfloat16, "flash-attn, which is not installed"),
        ("flash", ("triton", "flash_attn"), "cuda", torch.float32, "has no float32"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_way_out(
    installed: Callable[..., None], asked: str, there: tuple[str, ...], device: str, dtype: torch.dtype, words: str
) -> None:
    installed(*there)
    with pytest.raises(EnvironmentRefused, check=wording):
        Attentions(asked, model(device, dtype))


def test_only_what_was_asked_for_by_name_is_refused(installed: Callable[..., None]) -> None:
    installed("triton", "flash_attn")
    raised = RuntimeError("out of resource: shared memory")
    for asked, chain in (("auto", "reference"), ("flash", "flash")):
        found = Attentions(asked, model("cuda"))
        assert found.fall_back(raised)
        assert (found.of([TREE])[0], found.of([CHAIN])[0]) == ("reference", chain)
        assert ["shared memory" in note for note in found.notes] == [True]
        assert not found.fall_back(raised)
    with pytest.raises(EnvironmentRefused, check=wording):
        Attentions("triton", model("cuda")).fall_back(raised)


def test_heads_that_are_too_large_fall_back_unless_asked_for(installed: Callable[..., None]) -> None:
    installed("triton")
    shapes = {0: (2, 512, 512)}
    auto, named = Attentions("auto", model("cuda")), Attentions("triton", model("cuda"))
    auto.check_shapes(shapes)
    assert auto.of([TREE]) == ("reference", False)
    assert wording(auto.report()["why"])
    with pytest.raises(EnvironmentRefused, check=wording):
        named.check_shapes(shapes)


def test_every_step_that_may_come_is_one_that_graphs_are_captured_for(installed: Callable[..., None]) -> None:
    """By trees of all sizes, of one sequence or several, with and without flash-attn, at any ratio of heads."""
    installed("triton", "flash_attn")
    rng = random.Random(0)
    for group, rival in itertools.product((1, 4, 7, 32), (1.0, 3.0)):
        found = Attentions("auto", model("cuda"))
        found.check_shapes({0: (2, 64, 64)}, {0: 2 * group})
        found.choose({"triton": 2.0, "flash": rival}.__getitem__)
        for _ in range(60):
            most, slots = rng.choice((1, 2, 9, 40)), rng.choice((1, 5))
            trees = [random_tree(rng, 0, 9, rng.randint(1, most)) for _ in range(rng.randint(1, slots))]
            widest = max(map(len, trees))
            attention, tall = found.of(trees)
            assert any(
                (steps.attention, steps.tall) == (attention, tall)
                and steps.fewest <= widest <= steps.widest
                and len(trees) <= steps.sequences
                for steps in found.steps(most, slots)
            ), (attention, tall, widest, found.steps(most, slots))


def test_a_tile_holds_the_query_heads_of_whole_rows(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    installed("triton")
    monkeypatch.setattr(choice, "interpreted", lambda: True)
    found = Attentions("triton", model("cpu"))
    found.check_shapes({0: (2, 64, 64)}, {0: 14})
    heights = [found.height(64, *kind) for kind in (("triton", False), ("triton", True), ("reference", True))]
    assert heights == [16 // 7, 128 // 7, 0]  # of 16 and 128 packed rows, with seven query heads per KV head


@pytest.mark.parametrize("cells", [4, 5, 6, 9])
def test_a_single_row_sees_no_further_back_than_its_window(cells: int) -> None:
    torch.manual_seed(0)
    window, see = 5, seen({0: 1}, [cells - 1])
    query, key, value = torch.randn(1, 2, 1, 8), torch.randn(1, 2, cells, 8), torch.randn(1, 2, cells, 8)
    near = torch.nn.functional.scaled_dot_product_attention(query, key[:, :, -window:], value[:, :, -window:])
    how = LayerAttention(None, Sight(window))
    torch.testing.assert_close(ReferenceAttention(see)(query, key, value, how), near.transpose(1, 2))
