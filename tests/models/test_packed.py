"""Packed weights are those that dequantising the file gives, and products with them have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.models import FAMILIES, attached, prompt, tiny, tiny_llama
from support.wording import wording
from torch import nn
from transformers import AutoModelForCausalLM, GgufConfig

from specbench.common import UsageError
from specbench.decoding import TokenTree
from specbench.models import packed
from specbench.models.export.gguf_file import export_gguf
from specbench.models.loader import load

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}  # bytes of a block that are halves


def raw(kind: str, rows: int, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random blocks [rows, bytes] of a format, with small scales."""
    block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (rows, size // block, nbytes), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = rng.normal(0, 0.02, (rows, size // block, 1)).astype(np.float16)
        found[:, :, at : at + 2] = scales.view(np.uint8)
    return found.reshape(rows, -1)


@pytest.mark.parametrize("kind", list(packed._FORMATS))
def test_values_are_those_of_the_formats_own_reader(kind: str) -> None:
    blocks = raw(kind, 5, 512)
    held = packed._FORMATS[kind](blocks, 512)
    expected = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
    assert torch.equal(held.values(), expected)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(held.rows(order).values(), expected[order])
    assert held.nbytes < 0.45 * expected.nbytes


@pytest.mark.parametrize("kind", list(packed._FORMATS))
@pytest.mark.parametrize("family", ["llama", "phi3"], ids=["apart", "gate and up in one"])
def test_products_have_the_bits_of_dequantised_weights(kind: str, family: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
    model = tiny_llama(97, **sizes) if family == "llama" else phi3(**sizes)
    for at, module in enumerate(m for m in model.modules() if type(m) is nn.Linear):
        rows, size = module.weight.shape
        module.__dict__["packed"] = packed._FORMATS[kind](raw(kind, rows, size, at), size)
        module.weight.data = module.__dict__["packed"].values()
    ids, tree = prompt(9, 97), TokenTree([1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 3, 4, 5])
    found = []
    for _ in range(2):
        with attached(model, capacity=32, max_rows=8, native=True) as engine:
            slot = engine.alloc()
            engine.prefill(slot, ids)
            top = engine.step({slot: tree}, top_k=20)[slot].top
            assert top is not None
            found.append(top)
        for module in model.modules():
            module.__dict__.pop("packed", None)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def phi3(**sizes: Any) -> Any:
    from support.models import SUPPORTED, build

    config, model, options = SUPPORTED["phi3"]
    return build((config, model, {**options, **sizes, "vocab_size": 97}))


def requantised(file: Path, into: Path, kind: str) -> Path:
    """A copy of a GGUF file with its matrices in another format."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(into, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[1] if field.types[1:] else None)
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        if data.ndim > 1 and data.shape[1] % 32 == 0:
            quantised = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(tensor.name, gguf.quantize(data.astype(np.float32), quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


@pytest.mark.parametrize("family", ["llama", "llama, tied"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_every_matrix_of_a_file_is_kept(family: str, kind: str, tmp_path: Path) -> None:
    made = export_gguf(tiny(FAMILIES[family]), tmp_path / "wide.gguf", dtype="float32", vocabulary="placeholders")
    sized = requantised(made.path, tmp_path / "short.gguf", kind)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=sized.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    full = packed.bytes_of(model)
    packed.keep_packed(model, sized)
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    # Rows of 48 values, of the MLP's last matrix, are no whole number of blocks.
    assert [module.in_features % 32 == 0 for module in linears] == [hasattr(module, "packed") for module in linears]
    assert packed.bytes_of(model) < 0.6 * full


def test_the_embedded_model_is_kept_as_its_file_has_it() -> None:
    model, plain = load("smollm2-135m", dtype="packed"), load("smollm2-135m")
    assert model.spec.dtype == "packed"
    assert model.spec.fingerprint == plain.spec.fingerprint
    assert all(hasattr(module, "packed") for module in model.model.modules() if type(module) is nn.Linear)
    assert model.spec.weight_bytes < 0.25 * plain.spec.weight_bytes
    ids = plain.tokenizer("The council met on Monday and")["input_ids"]
    texts = []
    for each in (model, plain):
        with attached(each.model, capacity=48, max_rows=4) as engine:
            assert engine.code.linears == "own"
            texts.append(engine.greedy(ids, 24))
    assert texts[0] == texts[1]


def test_what_has_no_packed_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a GGUF file", check=wording):
        load("config:tiny", dtype="packed", device="cpu")
    made = export_gguf(tiny(FAMILIES["llama"]), tmp_path / "wide.gguf", dtype="float32", vocabulary="placeholders")
    with pytest.raises(UsageError, match="F32", check=wording):
        packed.keep_packed(tiny(FAMILIES["llama"]).model, made.path)
