"""Shapes by free memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu_check import shapes
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
    assert whole == shapes.whole(family)
    assert (shapes.fits(family, 24 * GIB), shapes.fits(family, 10 * GIB)) == (True, False)
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
    assert shapes.values_of(cut) == values
    with torch.device("meta"):
        config = AutoConfig.for_model(**shapes.json.loads(Path(cut.spec.removeprefix("config:")).read_text()))
        assert len(AutoModelForCausalLM.from_config(config).model.layers) == cut.layers
    nothing, why = shapes.fitting(family, 4 * GIB, 2048, tmp_path)
    assert nothing is None
    assert why.startswith(f"{family} is left out: 4.0 GiB are free")
    head = shapes.fitting(family, 24 * GIB, 2048, tmp_path, extra_bytes=12 * GIB)[0]
    assert head is not None
    assert not head.whole
