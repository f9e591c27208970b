"""How many kernels a run compiles, and that none is left to compile when requests are timed; counted without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from support.gpu import Make, eagle, jetspec, on_meta, passes_of
from support.kernels import Variants
from support.models import SUPPORTED

from benchmarks.gpu_check.meta_step import META, MetaStep, launches
from specbench.decoding import TokenTree
from specbench.engine import pack
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.graphs import Running
from specbench.engine.heads.head_pass import HeadPass
from specbench.engine.kernels.ops import TritonOps
from specbench.engine.layers import code
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layout import Group
from specbench.engine.ops import TorchOps
from specbench.engine.program import Program, StepKind
from specbench.engine.sampler import Sampling

SAMPLED = Sampling(0.8, top_k=50, top_p=0.95, seed=1)
#: Kernels of a step that are compiled more than once, by what: attention and its splits by tiles, trees by their size.
SEVERAL = {"attend": 3, "combine": 2, "_tree_bits": 3, "_accept": 3, "_add_norm": 2}
#: The same within limits: a search by counts and one by masses, each of three launches.
SEVERAL_SAMPLED = SEVERAL | {"_weigh": 6, "_settle": 2}


def ladder(slots: int, *samplings: Sampling) -> Variants:
    """Steps of every bucket, by short and by tall tiles."""
    model, found = on_meta(SUPPORTED["qwen3"]), Variants()  # a vocabulary of 300, which 16 does not divide
    meta = MetaStep(model, TritonOps(META), slots=slots, capacity=1024)
    with launches(found.note):
        for sampling in samplings:
            same = meta._program.ops.same_graph(sampling)
            for rows in ROW_BUCKETS:
                for tall in {rows > 16, rows > 4}:
                    meta.run(rows, StepKind(same, attention="triton", tall=tall))
    return found


def beyond(found: Variants, several: Mapping[str, int]) -> dict[str, int]:
    """Kernels with more variants than expected."""
    return {name: count for name, count in found.counts().items() if count > several.get(name, 1)}


@pytest.mark.parametrize("slots", [1, 3])
def test_a_greedy_ladder_compiles_few_kernels(slots: int) -> None:
    found = ladder(slots, Sampling())
    assert beyond(found, SEVERAL) == {}
    assert found.total() <= 18


def test_top_k_and_top_p_compile_few_more() -> None:
    found = ladder(1, Sampling(), SAMPLED)
    assert beyond(found, SEVERAL_SAMPLED | {"_best_of_split": 2}) == {}  # with limits and without
    assert found.total() <= 28


def test_prompts_of_any_length_compile_nothing_more() -> None:
    meta, found = MetaStep(on_meta(SUPPORTED["qwen3"]), TritonOps(META), capacity=2048), Variants()
    plain = Program(meta.model, TorchOps())
    with launches(found.note):
        for rows in ROW_BUCKETS:
            meta.run(rows, StepKind(Sampling(), attention="triton", tall=rows > 4))
        before = found.counts()
        for length in (1, 7, 16, 100, 1024):
            shape = pack.Shape(1, 1)
            packed, ids = torch.zeros(shape.width_in, dtype=torch.int32, device=META), torch.zeros(length, device=META)
            plain.run(
                packed, shape, StepKind(Sampling()), meta.cache, ReferenceAttention, head=ids.long(), commit=False,
                groups=(Group(slice(0, 1), slice(0, 1), 1, causal=True),),
            )  # fmt: skip
    assert {"_add_norm", "_rotate", "_gated"} <= before.keys()
    assert found.counts() == before


def test_every_launch_says_whether_products_are_fused() -> None:
    """Triton's default is another in each version, and would be another rounding."""
    found = ladder(1, Sampling(), SAMPLED)
    with launches(found.note):
        passes_of(jetspec(1))
    assert found.unsaid == set()


def again(work: Callable[[], None]) -> Callable[[], None]:
    """A capture, by what it returns."""
    work()
    return lambda: work()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("make", [jetspec(2), eagle(4)], ids=["jetspec", "eagle3"])
def test_no_round_compiles_what_its_making_has_not(make: Make, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code.OF_DEVICE, "meta", FusedLayers)
    monkeypatch.setattr(HeadPass, "_work", HeadPass._compute)  # there is nothing to copy to the host
    found = Variants()
    with launches(found.note), torch.inference_mode():
        passes = passes_of(make, slots, again)
        before = found.counts()
        for _ in range(slots):
            passes.open(len([seat for seat in passes._seats._seats if seat]))
        size = passes._features.shape[2]
        for slot in range(slots):
            passes.append(slot, [1] * 20, torch.zeros(20, size, dtype=torch.bfloat16, device=META))
        passes._run()
        for rows in [bucket for bucket in ROW_BUCKETS if bucket >= slots]:
            follow(passes, rows, slots, size)
    assert before["_take"] == 1
    assert found.counts() == before
    assert found.total() <= 16


def follow(passes: Any, rows: int, slots: int, size: int) -> None:
    """The round after a step of a bucket; its results are nowhere on this device, so the seats stay as they were."""
    shape = pack.Shape(rows, slots)
    packed = torch.zeros(shape.width_in, dtype=torch.int32, device=META)
    out = torch.zeros(shape.width_out(0), dtype=torch.int32, device=META)
    batch = pack.Batch.of({slot: TokenTree.chain([0]) for slot in range(slots)})
    hidden = torch.zeros(rows, size, dtype=torch.bfloat16, device=META)
    passes.follow(Running(batch, pack.split(packed, shape), pack.unjoin(out, shape), hidden))
    for seat in passes._seats._seats:
        assert seat.followed
        seat.followed = False
