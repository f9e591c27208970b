"""Draft heads whose layers run by kernels say what they say by torch; what comes out otherwise is not used."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.decoders import alone
from support.models import supported

from specbench.engine.kernels import gated, norm, rotate
from specbench.engine.layers import code
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layers.kernel_pieces import PIECES
from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead, BlockRounds
from specbench.heads.level_rounds import LevelRounds
from specbench.methods.eagle3.config import HeadConfig as EagleConfig
from specbench.methods.eagle3.head import DraftHead as EagleHead

ROUNDS = ((0, 9), (1, 1), (0, 2))  # of two slots, new rows each
BLOCKS = ("block", "ahead", "windows")
SLOW = ("ahead", "tree", "norms", "parallel")
HEADS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else [])
    for kind in (*BLOCKS, "tree", "chain", "norms", "parallel")
]
EAGLES = ["norm", "attention", "mlp"]  # nothing of a text is kept without going through its layers


@pytest.fixture(autouse=True)
def _kernels_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code.OF_DEVICE, "cpu", FusedLayers)


@cache
def target() -> Any:
    return copy.deepcopy(supported("qwen3")).to("cuda" if torch.cuda.is_available() else "cpu")


def head(kind: str) -> Any:
    """A head of few layers whose numbers are large enough that everything in it matters."""
    config, device = target().config, target().device
    made: Any
    if kind in BLOCKS:
        shape = BlockHeadConfig.for_target(
            config, mask_token_id=299, block_size=4, layers=2 if kind == "ahead" else 1, causal=kind != "ahead"
        )
        if kind == "windows":
            shape = replace(shape, sliding_window=5, layer_types=("sliding_attention",))
        made = BlockHead.random(shape, device=device)
    else:
        eagle = EagleConfig.for_target(
            config, layers=2 if kind == "tree" else 1, mask_token_id=7 if kind == "parallel" else None
        )
        if kind == "norms":
            eagle = replace(eagle, norm_before_residual=True, feeds_norm=True, head_norms=True)
        made = EagleHead.random(eagle, device=device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(device)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return made


NOTED: list[Any] = []


def passes(kind: str, drafts: Any, native: bool | None, products: Any = lambda weights: None) -> Any:
    what = replace(alone(target(), slots=2, capacity=60), native=native, note=NOTED.append, products=products)
    if isinstance(drafts, BlockHead):
        return BlockRounds(drafts, what, depth=3, width=5)
    return LevelRounds(drafts, what, depth=3, width=1 if kind == "chain" else 2)


def outcomes(
    kind: str, drafts: Any, native: bool | None, products: Any = lambda weights: None
) -> tuple[list[tuple[torch.Tensor, ...]], dict[str, Any]]:
    """What rounds hand to the host, and the report."""
    found, generator = passes(kind, drafts, native, products)._passes, torch.Generator().manual_seed(1)
    rounds = []
    for _ in range(2):
        found.open()
    for slot, count in ROUNDS:
        features = torch.randn(count, drafts.fc.in_features, generator=generator).to(drafts.device)
        found.append(slot, [(5 * each) % 97 for each in range(count)], features)
        rounds.append(found.draft(slot))
    return rounds, found.report()


@pytest.mark.parametrize("kind", HEADS)
def test_kernels_say_what_torch_says(kind: str) -> None:
    drafts = head(kind)
    plain, report = outcomes(kind, drafts, False)
    assert report == NOTED.pop() == {"fusions": [], "not_fused": {"all": "not requested"}}
    kernels, report = outcomes(kind, drafts, None)
    assert report == {"fusions": [*PIECES] if kind in BLOCKS else EAGLES, "not_fused": {}}
    for expected, got in zip(plain, kernels, strict=True):
        for one, other in zip(expected, got, strict=True):
            if one.is_floating_point():
                assert (one - other).abs().max() < 1e-3
                assert one.std() > 0.02
            else:
                assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("module", "kernel", "off"),
    [(norm, "add_norm", ["norm"]), (rotate, "rotate", ["attention", "keep"]), (gated, "gated", ["mlp"])],
)
def test_a_kernel_that_computes_something_else_is_not_used(
    module: Any, kernel: str, off: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(module, kernel)

    def wrong(*args: Any) -> Any:
        if kernel == "rotate":  # right queries, and nothing is stored
            stored = [each.clone() for each in args[3:5]]
            return own(*args[:3], *stored, *args[5:])
        found = own(*args)
        return (found[0] * 1.01, found[1]) if isinstance(found, tuple) else found * 1.01

    drafts = head("block")
    plain, _ = outcomes("block", drafts, False)
    monkeypatch.setattr(module, kernel, wrong)
    got, report = outcomes("block", drafts, None)
    assert report["fusions"] == [each for each in PIECES if each not in off]
    assert {*report["not_fused"]} == {*off}
    assert all("relative error" in why for why in report["not_fused"].values())
    for expected, found in zip(plain, got, strict=True):
        assert torch.equal(expected[0], found[0])


def test_layers_of_another_kind_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = head("block")
    drafts.layers[0].mlp.register_parameter("gain", torch.nn.Parameter(torch.ones(1, device=drafts.device)))
    _, report = outcomes("block", drafts, None)
    assert report == {"fusions": [], "not_fused": {"all": "its layers have a mlp.gain"}}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, report = outcomes("block", head("block"), None)
    assert report["not_fused"] == {"all": "triton is not installed"}


@pytest.mark.parametrize("kind", ["block", "chain"])
def test_products_of_few_rows_are_the_targets(kind: str) -> None:
    """All of a head's weights are handed over, and every product of a round is asked for there."""
    drafts, given, asked = head(kind), dict[tuple[int, int], Any](), set[tuple[int, int]]()

    def by(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        asked.add((weight.shape[0], weight.shape[1]))
        return torch.nn.functional.linear(x, weight, bias)

    def products(weights: Any) -> Any:
        given.update(weights)
        return by

    plain, _ = outcomes(kind, drafts, False)
    got, _ = outcomes(kind, drafts, None, products)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(sum(plain, ()), sum(got, ()), strict=True))
    config, hidden = drafts.config, target().config.hidden_size
    read = 1 if kind == "block" else 2  # a layer of EAGLE's reads a token's embedding, too
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    expected = {
        (hidden, drafts.fc.in_features), (heads * config.head_dim, read * hidden),
        (hidden, config.num_attention_heads * config.head_dim), (2 * config.intermediate_size, hidden),
        (hidden, config.intermediate_size),
    }  # fmt: skip
    expected |= set() if kind == "block" else {(config.draft_vocab_size, hidden)}  # else it is the target's own
    assert {*given} == expected
    assert asked >= expected
    generator = torch.randn(1, drafts.fc.in_features, requires_grad=True, device=drafts.device)
    asked.clear()
    drafts.fc(generator).sum().backward()
    assert not asked, "a training's forward must be torch's, which has a backward"
