"""Nodes, bytes and predicted time of a step by the configuration alone: figures by hand, families, refusals."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gpu import on_meta
from support.models import REFUSED, SUPPORTED, attached, build, tiny_llama
from support.wording import wording

from benchmarks.gpu_check.meta_step import MetaStep
from benchmarks.gpu_check.nodes import COPIED, LEAST, NODE_S, NodeCount, StepNodes, ceilings_of, count_nodes
from specbench.common import UsageError
from specbench.engine.program import StepKind
from specbench.engine.sampler import Sampling
from specbench.hardware.gpus import find
from specbench.hardware.roofline import Ceilings
from specbench.models.names import configs
from specbench.profiling.shape import shape_of

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3")
TINY = "config:tiny"
H200 = find("h200")

#: Kernels of a layer in a step of one row and of many, and those outside of layers: fused, and as transformers has it.
TIMED = {"qwen2.5-7b": ((9, 10, 30), (39, 40, 37)), "qwen3-8b": ((9, 10, 30), (55, 56, 37))}


def written(folder: Path, recipe: Any, **more: Any) -> str:
    """``--model`` for the configuration of a tiny model."""
    with torch.device("meta"):
        values = build(recipe).config.to_dict()
    file = folder / "made.json"
    file.write_text(json.dumps({**values, **more}))
    return f"config:{file}"


@pytest.fixture(scope="module")
def tiny() -> NodeCount:
    return count_nodes(TINY, rows=(1, 16), context=1000)


def test_bytes_by_hand(tiny: NodeCount) -> None:
    # Hidden 64, MLP 128, 2 layers, 4 heads and 2 KV heads of 16, 320 words, head and embedding tied; bfloat16.
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128
    weights, token = 2 * layer + 320 * 64 + 5 * 64, 2 * 2 * 2 * 16
    for step in tiny.steps:
        assert step.weight_bytes == 2 * (weights + step.rows * 64)
        assert step.cache_bytes == 2 * token * (1000 + 2 * step.rows)
        assert step.flops == 2 * step.rows * (2 * layer + 320 * 64 + 2 * 4 * 32 * (1000 + step.rows))


def test_each_sequence_has_rows_and_a_cache_of_its_own(tiny: NodeCount) -> None:
    many = count_nodes(TINY, rows=(1, 16), context=1000, slots=16)
    for one, several in zip(tiny.steps, many.steps, strict=True):
        assert several.cache_bytes == 16 * one.cache_bytes
        assert several.weight_bytes == one.weight_bytes + 2 * 15 * one.rows * 64
        assert several.flops == 16 * one.flops
        assert several.nodes == one.nodes  # tiles go by the rows of a sequence


def test_nodes_are_those_of_a_step_that_has_run_before(tiny: NodeCount) -> None:
    """Counted one after the other they are what each alone is, with the tiles that an engine would take."""
    recipe = ("LlamaConfig", "LlamaForCausalLM", json.loads(configs()["tiny"].read_text()))
    for step in tiny.steps:
        meta = MetaStep(on_meta(recipe), capacity=1100, fused=step.fused)
        sampling = Sampling(0.8 if step.sampled else 0.0)
        kind = StepKind(sampling, attention="triton", tall=step.rows > 8)  # 2 heads to a KV head
        alone = meta.nodes(step.rows, kind)
        assert [*step.layers] == [*map(len, alone.of_layers())]
        assert step.outside == len(alone.others())
        assert step.nodes == len(alone.seen)


def test_seconds_are_bytes_and_nodes(tiny: NodeCount) -> None:
    step = tiny.steps[0]
    assert step.seconds(ceilings_of(H200, "bfloat16")) == pytest.approx(
        (step.weight_bytes + step.cache_bytes) / 4.3e12 + (sum(step.layers) + step.outside) * NODE_S
    )
    assert NODE_S == 2.25e-6
    assert step.seconds(ceilings_of(H200, "bfloat16"), LEAST) < step.seconds(ceilings_of(H200, "bfloat16"))


@pytest.mark.parametrize(
    ("rows", "sequences", "slower"), [(16, 1, False), (17, 1, True), (1, 16, False), (1, 17, True)]
)
def test_more_rows_than_our_products_take_are_read_slower(rows: int, sequences: int, slower: bool) -> None:
    step = StepNodes(rows, False, True, (9,), 30, 0.9e9, 0.1e9, flops=0.0, sequences=sequences)
    ceilings = Ceilings(bytes_per_s=1e12, flops_per_s=1e15)
    assert step.moved_s(ceilings) == pytest.approx((0.9 / 0.885 if slower else 0.9) * 1e-3 + 0.1e-3)


@pytest.mark.parametrize(("flops", "computes"), [(0.99e12, False), (2e12, True)])
def test_a_step_takes_the_longer_of_its_bytes_and_its_flops(flops: float, computes: bool) -> None:
    # A millisecond each of 1e12 FLOPs and 1e9 bytes.
    card = dataclasses.replace(H200, bf16=1000.0, bandwidth_gb_s=1000.0 / COPIED)
    step = StepNodes(8, False, True, (9, 9), 30, weight_bytes=0.9e9, cache_bytes=0.1e9, flops=flops)
    assert step.computes(ceilings_of(card, "bfloat16")) == computes
    unstated = ceilings_of(dataclasses.replace(card, bf16=None), "bfloat16")
    assert not step.computes(unstated)
    assert step.seconds(unstated) == pytest.approx(1e-3 + 48 * NODE_S)
    predicted = step.seconds(ceilings_of(card, "bfloat16"))
    assert predicted == pytest.approx((2 if computes else 1) * 1e-3 + 48 * NODE_S)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_by_their_configuration(family: str, tmp_path: Path) -> None:
    count = count_nodes(written(tmp_path, SUPPORTED[family]), rows=(1,), context=64)
    fused, plain = count.steps[:2]
    assert (fused.fused, plain.fused, len(fused.layers)) == (True, False, len(plain.layers))
    assert 3 * max(fused.layers) < min(plain.layers)
    assert (count.fusions, count.not_fused, count.why_not_fused) == (("norm", "attention", "mlp"), {}, "")


def test_experts_are_not_fused_and_said_not_to_be(tmp_path: Path) -> None:
    count = count_nodes(written(tmp_path, SUPPORTED["mixtral"]), rows=(1,), context=64)
    assert (count.fusions, count.not_fused) == (("norm", "attention"), {"mlp": "its MLP is not a supported gated MLP"})
    (one,) = [step for step in count.steps if step.fused and not step.sampled]
    (several,) = [
        step
        for step in count_nodes(written(tmp_path, SUPPORTED["mixtral"]), rows=(1, 16), context=64).steps
        if step.fused and not step.sampled and step.rows == 16
    ]
    assert several.weight_bytes - one.weight_bytes > 2 * 2 * 32 * 48 * 3  # more rows read more experts


@pytest.mark.slow  # seconds of a processor for the layers as transformers has them
@pytest.mark.parametrize("family", TIMED)
def test_layers_of_models_that_are_timed(family: str) -> None:
    for step in count_nodes(f"config:{family}").steps:
        few, many, outside = TIMED[family][not step.fused]
        # Nothing joins the splits of a short tile's attention but itself.
        assert ({*step.layers}, step.outside) == ({few if step.rows == 1 else many}, outside)


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss", "llama4", "mixtral", "gpt2", "tied", "untied"])
def test_the_shape_without_memory_is_the_shape(family: str) -> None:
    def make() -> Any:
        if family in ("tied", "untied"):
            return tiny_llama(97, tie_word_embeddings=family == "tied")
        return build(SUPPORTED[family])

    with attached(make().to(torch.bfloat16), capacity=1, max_rows=2) as engine:
        expected = shape_of(engine)
    with torch.device("meta"):
        model = make()
    for fused in (False, True):
        found = shape_of(MetaStep(model.to(torch.bfloat16), capacity=64, fused=fused))
        assert found == expected


@pytest.mark.parametrize("feature", ["longrope", "window in the mask only"])
def test_what_the_engine_does_not_run_is_refused(feature: str, tmp_path: Path) -> None:
    recipe, _ = REFUSED[feature]
    with pytest.raises(UsageError, check=wording):
        count_nodes(written(tmp_path, recipe), context=64)


def test_a_prediction_needs_no_torch() -> None:
    code = "import sys, benchmarks.gpu_check.predict, benchmarks.gpu_check.nodes\n"
    code += "sys.exit(bool({'torch', 'transformers', 'triton'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
