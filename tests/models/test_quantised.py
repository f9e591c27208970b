"""Quantised weights, read by transformers' own loaders or quantised at load; exact against their own AR."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import hiding_tree
from support.models import attached, autoregressive, decode, prompt, tiny_llama
from support.wording import wording
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerFast, TorchAoConfig

import specbench
from specbench.common import SpecbenchError
from specbench.decoding import TokenTree
from specbench.models import LoadedModel, load
from specbench.models.stored import elements
from specbench.profiling.shape import shape_of

VOCAB = 64
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


def quantised(folder: Path, how: Any) -> Path:
    """A checkpoint of a small Llama whose linear layers are quantised."""
    from tokenizers import Tokenizer, models

    tiny_llama(VOCAB, **SIZES).save_pretrained(folder / "plain")
    model = AutoModelForCausalLM.from_pretrained(folder / "plain", quantization_config=how, dtype=torch.float32)
    model.save_pretrained(folder / "made")
    words = Tokenizer(models.BPE(vocab={chr(256 + at): at for at in range(VOCAB)}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "made")
    return folder / "made"


def assert_exact(loaded: LoadedModel) -> None:
    """Trees that hide AR's text give AR's text; the roofline counts the weights and not what they are packed in.

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
        shape = shape_of(engine)
        layers = {name: size for name, size in elements(loaded.model).items() if "proj" in name}
        assert shape.matmul == sum(layers.values())
        # bitsandbytes changes its scales to bfloat16 in its first product.
        read = shape.weight_bytes * sum(elements(loaded.model).values())
        assert read == pytest.approx(loaded.spec.weight_bytes, rel=0.05)


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
