"""oneDNN linears compute what torch's do, only while the engine has the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specbench.engine import linears
from specbench.engine.engine import Engine
from specbench.models import load


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_equal_up_to_rounding(bias: bool, rows: int) -> None:
    torch.manual_seed(rows)
    module = nn.Sequential(nn.Linear(96, 160, bias=bias)).requires_grad_(False)
    x = torch.randn(2, rows, 96)
    expected = module(x)
    switch = linears.Linears(module, "onednn")
    switch.attach()
    with torch.inference_mode():
        got = module(x)
    switch.detach()
    # another kernel, so other last bits: equal bits would mean that nothing was switched
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert module(x).equal(expected)


def test_subclasses_keep_what_they_compute() -> None:
    class Doubling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(Doubling(8, 8)).requires_grad_(False)
    x = torch.randn(1, 8)
    expected = module(x)
    linears.Linears(module, "onednn").attach()
    assert module(x).equal(expected)


def test_only_fp32_on_a_cpu() -> None:
    assert linears.kind_for(load("config:tiny").model) == "onednn"
    assert linears.kind_for(load("config:tiny", dtype="bf16").model) == "torch"


def test_the_engine_takes_and_returns_them() -> None:
    model = load("config:tiny").model
    before = {name: "forward" in module.__dict__ for name, module in model.named_modules()}
    engine = Engine(model, capacity=16)
    assert any("forward" in module.__dict__ for module in model.modules() if type(module) is nn.Linear)
    engine.close()
    assert before == {name: "forward" in module.__dict__ for name, module in model.named_modules()}
