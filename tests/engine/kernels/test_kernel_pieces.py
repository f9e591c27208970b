"""Draft heads whose layers run by kernels say what they say by torch; what comes out otherwise is not used."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from support.small_heads import BLOCKS, KINDS, NOTED, head, outcomes, target

from specbench.engine.kernels import gated, norm, rotate
from specbench.engine.layers import code
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layers.kernel_pieces import PIECES

SLOW = ("ahead", "tree", "norms", "parallel")
HEADS = [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in KINDS]
EAGLES = ["norm", "attention", "mlp"]  # nothing of a text is kept without going through its layers


@pytest.fixture(autouse=True)
def _kernels_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code.OF_DEVICE, "cpu", FusedLayers)


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
