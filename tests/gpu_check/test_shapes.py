"""Shapes by free memory, and predictions by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu_check import predict, shapes
from benchmarks.gpu_check.shapes import Shape
from specbench.hardware.roofline import AttentionLayers, Ceilings, ModelShape
from specbench.models.names import resolve

GIB = 1 << 30


@pytest.mark.parametrize("family", shapes.WANTED)
def test_weights_are_counted_as_the_model_has_them(family: str) -> None:
    values = shapes.config(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16)
    counted = shapes.weight_bytes(values, values["num_hidden_layers"])
    assert counted == pytest.approx(sum(p.nbytes for p in model.parameters()), rel=1e-3)


@pytest.mark.parametrize("family", shapes.WANTED)
def test_what_does_not_fit_is_cut_and_says_so(family: str, tmp_path: Path) -> None:
    whole, why = shapes.fitting(family, 24 * GIB, 2048, tmp_path)
    assert whole is not None
    assert (whole.whole, whole.name, whole.spec, why) == (True, family, f"config:{family}", "")
    cut, why = shapes.fitting(family, 10 * GIB, 2048, tmp_path)
    assert cut is not None
    assert 4 <= cut.layers < cut.of
    assert cut.name == f"{family} with {cut.layers} of {cut.of} layers"
    assert why.startswith(f"{family} is cut to {cut.layers} of {cut.of} layers: 10.0 GiB are free")
    values = shapes.config(family)
    room = 10 * GIB - shapes.WORKING_BYTES

    def need(layers: int) -> int:
        return shapes.weight_bytes(values, layers) + 2048 * shapes.cached_bytes(values, layers)

    assert need(cut.layers) <= room < need(cut.layers + 1)
    assert resolve(cut.spec).kind == "config"
    with torch.device("meta"):
        config = AutoConfig.for_model(**shapes.json.loads(Path(cut.spec.removeprefix("config:")).read_text()))
        assert len(AutoModelForCausalLM.from_config(config).model.layers) == cut.layers
    nothing, why = shapes.fitting(family, 4 * GIB, 2048, tmp_path)
    assert nothing is None
    assert why.startswith(f"{family} is left out: 4.0 GiB are free")
    head = shapes.fitting(family, 24 * GIB, 2048, tmp_path, beside=12 * GIB)[0]
    assert head is not None
    assert not head.whole


def test_a_prediction_is_kernels_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("qwen3-8b", 36, 36, "config:qwen3-8b")
    attention = AttentionLayers(layers=36, query_heads=32, kv_heads=8, key_size=128, value_size=128)
    cost = ModelShape(
        matmul=7_000_000_000, head=600_000_000, embedding=0, embedding_width=0, tied=False, small=0,
        attention=(attention,), weight_bytes=2.0, cache_bytes=2.0,
    )  # fmt: skip
    ceilings = Ceilings(bytes_per_s=4e12, flops_per_s=8e14)
    found = predict.step(shape, cost, ceilings, 1, 1000)
    assert found is not None
    cells = 36 * 8 * 256 * (1000 + 2) * 2.0
    assert found.seconds == pytest.approx(36 * 9 * 2.25e-6 + (7.6e9 * 2 + cells) / 4e12)
    assert found.basis.startswith("324 kernels (predicted) × 2.25 µs (assumed) + 15.3 GB / 4000 GB/s")
    compiled = predict.step(shape, cost, ceilings, 1, 1000, layers="compiled")
    assert compiled is not None
    assert compiled.seconds - found.seconds == pytest.approx(36 * (17 - 10) * 2.25e-6)
    wide = predict.step(shape, cost, ceilings, 512, 0)
    assert wide is not None
    assert "TFLOP" in wide.basis
    rounds = predict.round_of_head(found, 4e9, ceilings)
    assert rounds is not None
    assert rounds.seconds == pytest.approx(found.seconds + 93 * 2.25e-6 + 1e-3)
    assert predict.step(shape, cost, None, 1, 1000) is None
