"""oneDNN linears compute what torch's do, only while the engine has the model."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from support.models import SUPPORTED, prompt, supported, tiny_llama
from torch import nn

from specbench.engine.engine import Engine
from specbench.engine.layers import onednn
from specbench.models.loader import load


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_equal_up_to_rounding(bias: bool, rows: int) -> None:
    torch.manual_seed(rows)
    module = nn.Sequential(nn.Linear(96, 160, bias=bias)).requires_grad_(False)
    x = torch.randn(2, rows, 96)
    expected = module(x)
    switch = onednn.Linears(module, "onednn")
    switch.attach()
    with torch.inference_mode():
        got = module(x)
    switch.detach()
    # another kernel, so other last bits: equal bits would mean that nothing was switched
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert module(x).equal(expected)
    traced = torch.ops.specbench.linear(x.to("meta"), module[0].weight.to("meta"), 160)  # as the compiler does
    assert (traced.shape, traced.dtype) == ((2, rows, 160), torch.float32)


def test_subclasses_keep_what_they_compute() -> None:
    class Doubling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(Doubling(8, 8)).requires_grad_(False)
    x = torch.randn(1, 8)
    expected = module(x)
    onednn.Linears(module, "onednn").attach()
    assert module(x).equal(expected)


def test_only_fp32_on_a_cpu() -> None:
    assert onednn.linear_kind(load("config:tiny").model) == "onednn"
    assert onednn.linear_kind(load("config:tiny", dtype="bf16").model) == "torch"


def test_the_engine_takes_and_returns_them() -> None:
    model = load("config:tiny").model
    before = {name: "forward" in module.__dict__ for name, module in model.named_modules()}
    engine = Engine(model, capacity=16)
    assert any("forward" in module.__dict__ for module in model.modules() if type(module) is nn.Linear)
    engine.close()
    assert before == {name: "forward" in module.__dict__ for name, module in model.named_modules()}


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_a_family_with_products(name: str) -> None:
    model = supported(name)
    ids = torch.tensor([prompt(7, model.config.vocab_size)])
    with torch.inference_mode():
        expected = model(ids).logits
        switch = onednn.Linears(model, "onednn")
        switch.attach()
        got = model(ids).logits
        again = model(ids[:, :1]).logits
        switch.detach()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again, model(ids[:, :1]).logits, rtol=1e-5, atol=1e-5)
        assert model(ids).logits.equal(expected)


def test_a_part_out_of_turn_is_of_its_own_input() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(24, size).requires_grad_(False) for size in (16, 8, 32)]
    product = onednn._Product(layers)
    first, second = torch.randn(2, 24), torch.randn(2, 24)
    for at, x in [(0, first), (1, second), (2, first), (2, second), (0, second), (1, second), (0, first), (2, first)]:
        torch.testing.assert_close(product.part(at, x), layers[at](x), rtol=1e-5, atol=1e-5)


def test_a_model_that_changes_the_input_in_between_keeps_single_layers() -> None:
    model = tiny_llama(97)
    for layer in model.model.layers:
        layer.mlp.forward = MethodType(_scaling_mlp, layer.mlp)
    expected = model(torch.arange(5)[None]).logits
    switch = onednn.Linears(model, "onednn")
    assert all(len(product._sizes) == 1 for product in switch._products)
    switch.attach()
    torch.testing.assert_close(model(torch.arange(5)[None]).logits, expected, rtol=1e-4, atol=1e-4)


def _scaling_mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    gate = self.gate_proj(x)
    return self.down_proj(gate * self.up_proj(x.mul_(2)))


def test_layers_that_share_weights_keep_torchs_kernel() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    module[1].weight = module[0].weight
    onednn.Linears(module, "onednn").attach()
    assert ["forward" in layer.__dict__ for layer in module] == [False, False, True]
