"""Kernels of a draft head's round: what it launches, without a GPU; one more a layer is what this notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from support.gpu import Make, dspark, eagle, eagle1, jetspec, medusa, mtp, passes_of

from benchmarks.gpu_check import predict
from benchmarks.gpu_check.meta_step import Nodes, launches
from specbench.engine.layers import code
from specbench.engine.layers.gpu_layers import FusedLayers

#: Of a layer: as of a target's, where a block has many rows and a level has few.
BLOCK = [
    "_add_norm", "linear", "_rotate", "attend", "combine", "linear", "_add_norm", "linear", "_gated", "linear",
]  # fmt: skip
LEVEL = ["linear", "_rotate", "attend", "linear", "_add_norm", "linear", "_gated", "linear", "add"]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code.OF_DEVICE, "meta", FusedLayers)


def round_of(make: Make) -> list[str]:
    """Names of what a round launches, but for the copies between device and host."""
    with launches(lambda *_: None):
        passes = passes_of(make)
        assert passes.report()["not_fused"] == {}
        nodes = Nodes()
    with torch.inference_mode(), launches(lambda kernel, *_: nodes.add(kernel.__name__)), nodes:
        passes._compute(1)
    return nodes.others()


def within(names: Sequence[str], part: Sequence[str]) -> int:
    """How often ``part`` stands in ``names``, without overlaps."""
    found = at = 0
    while at <= len(names) - len(part):
        if [*names[at : at + len(part)]] == [*part]:
            found, at = found + 1, at + len(part)
        else:
            at += 1
    return found


@pytest.mark.parametrize("causal", [True, False])
def test_a_round_of_jetspec(causal: bool) -> None:
    one, three = round_of(jetspec(1, causal=causal)), round_of(jetspec(3, causal=causal))
    assert within(three, BLOCK) == 3, three
    # Of each layer the block's, and a product and a store of the text's new rows.
    more = Counter(three) - Counter(one)
    assert more == Counter({name: 2 * count for name, count in Counter([*BLOCK, "linear", "_rotate"]).items()})
    assert len(one) - len(BLOCK) - 2 <= (33 if causal else 36), one


def test_what_gpu_check_predicts_a_round_by_is_what_is_counted() -> None:
    assert len(round_of(jetspec(5))) == predict.HEAD_NODES
    assert len(round_of(eagle(8))) == predict.EAGLE_NODES


def test_a_level_of_eagle() -> None:
    two, four = round_of(eagle(2)), round_of(eagle(4))
    assert within(two, LEVEL) == 2, two  # the text's new rows are the first
    assert (len(four) - len(two)) / 2 <= 43.5, four


def test_a_position_of_dspark_has_no_layers() -> None:
    one, three = round_of(dspark(1)), round_of(dspark(3))
    more = Counter(three) - Counter(one)
    layer = [*(name for name in BLOCK if name != "combine"), "linear", "_rotate"]  # a block of 7 rows is not split
    assert more == Counter({name: 2 * count for name, count in Counter(layer).items()})
    for width, most in ((1, 20), (4, 20)):
        short, long = (round_of(dspark(depth=depth, width=width)) for depth in (4, 6))
        # Two products a position: the Markov head's and the confidence head's.
        assert Counter(long)["linear"] - Counter(short)["linear"] == 4
        assert (len(long) - len(short)) / 2 <= most, (width, Counter(long) - Counter(short))


def test_a_round_of_medusa() -> None:
    one, three, deep = round_of(medusa(1)), round_of(medusa(3)), round_of(medusa(3, blocks=2))
    assert Counter(three) - Counter(one) == {"linear": 4, "silu": 2, "add": 2}  # of each head a block and an LM head
    assert Counter(deep) - Counter(three) == {"linear": 3, "silu": 3, "add": 3}
    assert len(one) <= 13, one


def test_a_level_of_a_head_without_a_first_norm() -> None:
    two, four = round_of(eagle1(2)), round_of(eagle1(4))
    assert within(two, LEVEL) == 2, two
    assert (len(four) - len(two)) / 2 <= 38.5, four


def test_a_level_of_a_written_tree() -> None:
    assert len(round_of(eagle1(5, "static"))) <= 172


def test_a_level_of_a_layer_that_transformers_runs() -> None:
    two, four = round_of(mtp(2)), round_of(mtp(4))
    assert (len(four) - len(two)) / 2 <= 111.5, four
