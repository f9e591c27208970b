"""Quantised weights, read by transformers' own loaders or quantised at load; exact against their own AR."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import hiding_tree
from support.models import SUPPORTED, attached, autoregressive, build, decode, prompt, tiny_llama
from support.wording import wording
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerFast, TorchAoConfig

import specbench
from specbench.common import SpecbenchError
from specbench.decoding import TokenTree
from specbench.hardware import ModelShape
from specbench.models import LoadedModel, load
from specbench.models.stored import elements
from specbench.profiling.shape import shape_of

VOCAB = 64

Pack = Callable[[str, Tensor], dict[str, Tensor]]
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


def quantised(folder: Path, how: Any) -> Path:
    """A checkpoint of a small Llama whose linear layers are quantised."""
    tiny_llama(VOCAB, **SIZES).save_pretrained(folder / "plain")
    model = AutoModelForCausalLM.from_pretrained(folder / "plain", quantization_config=how, dtype=torch.float32)
    model.save_pretrained(folder / "made")
    with_tokenizer(folder / "made")
    return folder / "made"


def with_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.BPE(vocab={chr(256 + at): at for at in range(VOCAB)}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def assert_texts_equal(loaded: LoadedModel) -> ModelShape:
    """Trees that hide AR's text give AR's text; returns the shape of the model.

    In float32: in fewer bits, a tie of two tokens falls as the number of rows has it.
    """
    assert loaded.spec.dtype == "float32"
    ids = prompt(9, VOCAB)
    with attached(loaded.model, capacity=60, max_rows=16) as engine:
        expected = autoregressive(engine, ids, 16)
        rng = random.Random(0)

        def draft(out: list[int]) -> TokenTree:
            hidden = expected[len(out) : len(out) + rng.randrange(5)]
            return hiding_tree(rng, out[-1], hidden, VOCAB, rng.randrange(len(hidden), 12), apart=True)

        assert decode(engine, ids, 16, draft) == expected
        return shape_of(engine)


def assert_exact(loaded: LoadedModel) -> None:
    """Texts are exact, and the roofline counts the weights and not what they are packed in."""
    shape = assert_texts_equal(loaded)
    layers = {name: size for name, size in elements(loaded.model).items() if "proj" in name}
    assert shape.matmul == sum(layers.values())
    read = shape.weight_bytes * sum(elements(loaded.model).values())
    assert read == pytest.approx(loaded.spec.weight_bytes)


def plain_bytes(itemsize: int) -> int:
    model = tiny_llama(VOCAB, **SIZES)
    return itemsize * sum(parameter.numel() for parameter in model.parameters())


def test_a_checkpoint_of_torchao(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    loaded = load(str(quantised(tmp_path, TorchAoConfig(quantization.Int8WeightOnlyConfig()))))
    assert loaded.spec.quantised == "torchao"
    assert loaded.spec.parameters == plain_bytes(1)
    assert loaded.spec.weight_bytes < 0.4 * plain_bytes(4)
    assert_exact(loaded)


def test_a_checkpoint_of_bitsandbytes(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    loaded = load(str(quantised(tmp_path, BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"))))
    assert loaded.spec.quantised == "bitsandbytes, 4 bits"
    assert loaded.spec.parameters == plain_bytes(1)
    # Half a byte each, and a float32 for each 64 of them.
    packed = sum(size for name, size in elements(loaded.model).items() if "proj" in name)
    assert loaded.spec.weight_bytes == pytest.approx(plain_bytes(4) - (4 - 0.5 - 4 / 64) * packed, rel=0.03)
    assert_exact(loaded)


def written(folder: Path, model: Any, pack: Pack, config: dict[str, Any]) -> Path:
    """A checkpoint whose tensors ``pack`` replaces, with the quantisation that its configuration declares."""
    model.save_pretrained(folder)
    kept = load_file(folder / "model.safetensors")
    save_file(
        {new: part for name in kept for new, part in pack(name, kept[name]).items()}, folder / "model.safetensors"
    )
    about = json.loads((folder / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(about))
    with_tokenizer(folder)
    return folder


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def test_fp8_blocks_are_dequantised_on_a_cpu(tmp_path: Path) -> None:
    expected: dict[str, Tensor] = {}

    def pack(name: str, weight: Tensor) -> dict[str, Tensor]:
        if "proj" not in name:
            return {name: weight}
        rows, columns = (-(-size // 128) for size in weight.shape)
        scales = torch.rand(rows, columns) + 0.5
        short = weight.to(torch.float8_e4m3fn)
        spread = scales.repeat_interleave(128, 0)[: weight.shape[0]].repeat_interleave(128, 1)[:, : weight.shape[1]]
        expected[name] = short.float() * spread
        return {name: short, f"{name}_scale_inv": scales}

    loaded = load(str(written(tmp_path, tiny_llama(VOCAB, **SIZES), pack, FP8)), dtype="float32", device="cpu")
    found = dict(loaded.model.named_parameters())
    assert expected.keys() <= found.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert loaded.spec.quantised == "fp8, unpacked"
    assert loaded.spec.weight_bytes == plain_bytes(4)
    assert_exact(loaded)
    unscaled = written(tmp_path / "unscaled", tiny_llama(VOCAB, **SIZES), short_only, FP8)
    with pytest.raises(SpecbenchError, match="unscaled"):
        load(str(unscaled), dtype="float32", device="cpu")


def short_only(name: str, weight: Tensor) -> dict[str, Tensor]:
    """FP8 weights whose scales are missing."""
    return {name: weight.to(torch.float8_e4m3fn) if "proj" in name else weight}


@pytest.mark.parametrize(("kind", "dtype", "most"), [("int", torch.int8, 127), ("float", torch.float8_e4m3fn, 448)])
def test_a_checkpoint_of_compressed_tensors(kind: str, dtype: torch.dtype, most: int, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")

    def pack(name: str, weight: Tensor) -> dict[str, Tensor]:
        if "proj" not in name:
            return {name: weight}
        scale = weight.abs().amax(1, keepdim=True) / most
        short = weight / scale
        return {name: (short.round() if kind == "int" else short).to(dtype), f"{name}_scale": scale}

    values = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**values, "strategy": "channel", "dynamic": False},
        "input_activations": {**values, "strategy": "token", "dynamic": True},
    }
    config = {
        "quant_method": "compressed-tensors", "format": f"{kind}-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }  # fmt: skip
    loaded = load(str(written(tmp_path, tiny_llama(VOCAB, **SIZES), pack, config)), dtype="float32", device="cpu")
    # Its layers unpack themselves in the first forward: later ones read float32.
    assert loaded.spec.weight_bytes == pytest.approx(plain_bytes(4), rel=0.05)
    assert_exact(loaded)


#: Values of FP4 (E2M1) by the low three of the four bits; the highest is the sign.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def test_mxfp4_experts_are_dequantised_on_a_cpu(tmp_path: Path) -> None:
    expected: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)

    def pack(name: str, weight: Tensor) -> dict[str, Tensor]:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return {name: weight}
        experts, columns, rows = weight.shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 125, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
        bits = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()
        values = E2M1[bits & 7] * torch.where(bits > 7, -1.0, 1.0) * 2.0 ** (scales[..., None].float() - 127)
        expected[name] = values.flatten(-2).transpose(1, 2)
        return {f"{name}_blocks": blocks, f"{name}_scales": scales}

    config_name, model_name, sizes = SUPPORTED["gpt_oss"]
    model = build((config_name, model_name, {**sizes, "intermediate_size": 32, "vocab_size": VOCAB}))
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    loaded = load(str(written(tmp_path, model, pack, config)), dtype="float32", device="cpu")
    found = dict(loaded.model.named_parameters())
    assert len(expected) == 2 * model.config.num_hidden_layers
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert_texts_equal(loaded)


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_weights_are_quantised_when_they_are_loaded(name: str) -> None:
    pytest.importorskip("torchao")
    plain, loaded = (load("config:tiny", dtype="float32", device="cpu", quantize=how) for how in (None, name))
    assert plain.spec.quantised is None
    assert loaded.spec.quantised is not None
    assert plain.spec.parameters == loaded.spec.parameters
    assert loaded.spec.weight_bytes < 0.7 * plain.spec.weight_bytes
    assert loaded.spec.fingerprint != plain.spec.fingerprint
    with attached(loaded.model, capacity=40, max_rows=8) as engine:
        assert wording(engine.report()["why_not_own"])
    assert_exact(loaded)


def test_what_cannot_be_quantised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecbenchError, check=wording):
        load("config:tiny", quantize="int3")
    monkeypatch.setitem(__import__("sys").modules, "torchao", None)
    with pytest.raises(SpecbenchError, check=wording):
        load("config:tiny", quantize="int8")


def test_a_run_of_quantised_weights(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b a b"}\n{"prompt": "c"}\n')
    options: dict[str, Any] = {"model": "config:tiny", "quantize": "int8", "method": "pld,jetspec", "quiet": True}
    options |= {"settings": ["jetspec.head=random"], "task": "prompts", "data_file": prompts, "max_new_tokens": 6}
    run = specbench.run(**options, out=tmp_path)
    assert json.loads((run.folder / "run.json").read_text())["model"]["quantised"] == "torchao, Int8Tensor"
    assert [row.lossless.lossy for row in run.summary.rows if row.lossless] == [0, 0, 0]
