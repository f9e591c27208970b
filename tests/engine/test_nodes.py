"""Kernels of a step: how many a layer launches, of every family; one more a layer is what this notices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.gpu import on_meta
from support.models import SUPPORTED

from benchmarks.gpu_check.meta_step import META, MetaStep, Nodes
from specbench.engine.kernels.ops import TritonOps
from specbench.engine.program import StepKind
from specbench.engine.sampler import Sampling

FUSED = ["_add_norm", "linear", "_rotate", "attend", "linear", "_add_norm", "linear", "_gated", "linear"]
#: Where tiles of attention are tall a kernel joins the splits of each.
WIDE = [*FUSED[:4], "combine", *FUSED[4:]]
DENSE = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3")
KINDS = {
    "one row": (1, StepKind(Sampling(), attention="triton"), FUSED),
    "64 rows": (64, StepKind(Sampling(), attention="triton"), WIDE),
    "sampled": (64, StepKind(Sampling(0.8, seed=2**40), attention="triton"), WIDE),
}


def nodes(family: str, rows: int, kind: StepKind, *, fused: bool = True) -> Nodes:
    return MetaStep(on_meta(SUPPORTED[family]), TritonOps(META), fused=fused).nodes(rows, kind)


def per_layer(found: Nodes) -> Sequence[Sequence[str]]:
    layers = found.of_layers()
    assert len(layers) > 1
    return layers


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("family", DENSE)
def test_a_layer_takes_nine_or_ten_nodes_whatever_its_family_has(family: str, what: str) -> None:
    rows, kind, layer = KINDS[what]
    found = nodes(family, rows, kind)
    assert [*per_layer(found)] == [layer] * len(per_layer(found))
    assert len(found.others()) <= (41 if family == "gemma3" else 30)  # it has two rotary embeddings


def test_experts_are_left_as_they_are() -> None:
    *_, last = per_layer(nodes("mixtral", *KINDS["64 rows"][:2]))
    assert last[:7] == WIDE[:7]
    assert last[7:] == [*last[7:-1], "to"]  # no addition to the residual stream comes after them
    assert len(last) <= 35  # the sort of its experts is counted as five


def test_a_layer_that_is_listened_to_adds_up_at_once() -> None:
    taps = nodes("qwen3", 1, StepKind(Sampling(), taps=(0,), attention="triton"))
    assert [*per_layer(taps)] == [[*FUSED, "add"], FUSED, FUSED]


@pytest.mark.parametrize("probabilities", [False, True], ids=["", "probabilities"])
@pytest.mark.parametrize("sampling", [Sampling(0.8, top_p=0.9), Sampling(0.8, top_k=20, top_p=0.9)], ids=str)
def test_filters_sort_nothing(sampling: Sampling, probabilities: bool) -> None:
    kind = StepKind(sampling, attention="triton", probabilities=probabilities)
    found = nodes("llama", 64, kind).others()
    searches = 1 + (sampling.top_k > 0)
    assert not {"sort", "topk", "cumsum", "argmax"} & set(found)
    # Keys of bf16 have four digits of 4 bits.
    assert [found.count(each) for each in ("_largest_of_piece", "_weigh", "_settle")] == [1, 4 * searches, searches]
    assert found.count("_keep") == probabilities
    plain = nodes("llama", 64, StepKind(Sampling(0.8), attention="triton", probabilities=probabilities)).others()
    # Without filters torch makes the scores: a fill, a copy and a division where probabilities are wanted.
    assert len(found) - len(plain) == 1 + 5 * searches + (1 - 3) * probabilities
