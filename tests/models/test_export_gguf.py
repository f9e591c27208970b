"""GGUF files: the model's values in llama.cpp's order, read by another reader, and nothing where that would not do."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from support import models
from support.models import EXPORTED_VOCAB, FAMILIES, loaded, tiny
from support.wording import wording
from transformers import AutoModelForCausalLM, GgufConfig

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.prompt import Prompt
from specbench.models.adapters import fingerprint
from specbench.models.export import gguf_file, vocabulary
from specbench.models.export.gguf_file import export_gguf
from specbench.models.export.graph import graph_of
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load

IDS = torch.arange(0, 60, 3)[None]


def read(file: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}


@pytest.mark.parametrize("family", ["llama", "llama, tied", "llama with wide heads", "qwen2", "qwen2, tied", "qwen3"])
def test_transformers_computes_the_same_of_a_file(family: str, tmp_path: Path) -> None:
    model = tiny(FAMILIES[family])
    for dtype in ("float32", "bfloat16"):
        export_gguf(model, tmp_path / f"{dtype}.gguf", dtype=dtype, vocabulary="placeholders")
        again = AutoModelForCausalLM.from_pretrained(
            tmp_path,
            gguf_file=f"{dtype}.gguf",
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        precision = getattr(torch, dtype)
        assert fingerprint(again, precision) == fingerprint(model.model, precision)
        wanted = tiny(FAMILIES[family]).model
        for parameter in wanted.parameters():
            parameter.data = parameter.data.to(precision).float()
        assert torch.equal(again(IDS).logits, wanted(IDS).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_of_rotary_frequencies_are_those_of_llama_3(dtype: str, tmp_path: Path) -> None:
    scaled = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
    scaled |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = loaded(llama(head_dim=32, rope_parameters=scaled))
    made = export_gguf(model, tmp_path / "tiny.gguf", dtype=dtype, vocabulary="placeholders")
    tensor = read(made.path)["rope_freqs.weight"]
    assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
    wanted = []
    for pair in range(16):  # as the paper's authors write it down
        wavelength = 2 * math.pi * 1e4 ** (pair / 16)
        share = min(max((64 / wavelength - 1) / 3, 0), 1)
        wanted.append(1 / ((1 - share) / 8 + share))
    assert tensor.data == pytest.approx(wanted, rel=1e-5)
    assert (wanted[0], wanted[-1]) == (1, 8)
    assert len({*wanted}) > 3
    with pytest.raises(UsageError, check=wording):
        load(str(made.path), device="cpu")  # transformers would leave them out


def llama(**options: Any) -> Any:
    return models.tiny_llama(EXPORTED_VOCAB, **options)


def qwen(**options: Any) -> Any:
    return models.build(("Qwen3Config", "Qwen3ForCausalLM", {"vocab_size": EXPORTED_VOCAB, **options}))


LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
HALF = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}


@pytest.mark.parametrize(
    "model",
    [
        lambda: models.supported("gpt2"),
        lambda: models.supported("mixtral"),
        lambda: llama(hidden_act="gelu"),
        lambda: llama(rope_parameters=LINEAR),
        lambda: qwen(rope_parameters=HALF),
        lambda: qwen(layer_types=["full_attention", "sliding_attention"], sliding_window=8, num_hidden_layers=2),
        lambda: qwen(attention_bias=True),
        lambda: models.build(("Qwen2Config", "Qwen2ForCausalLM", {"vocab_size": EXPORTED_VOCAB, "head_dim": 12})),
        lambda: with_more(llama()),
        lambda: type("LlamaForCausalLM", (type(llama()),), {})(llama().config),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(model: Callable[[], Any], tmp_path: Path) -> None:
    graph_of(models.supported("llama"), "good")
    with pytest.raises(UsageError, check=wording):
        export_gguf(loaded(model(), name="bad"), tmp_path / "x" / "y", dtype="float32", vocabulary="placeholders")
    assert not [*tmp_path.iterdir()]


def with_more(model: Any) -> Any:
    model.extra = torch.nn.Linear(2, 2, bias=False)
    return model


@pytest.mark.parametrize("fault", ["value", "name"])
def test_a_file_that_holds_something_else_is_an_error(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(FAMILIES["llama"])
    if fault == "value":
        own = gguf.quantize

        def changed(rows: Any, kind: Any) -> Any:
            rows = rows.copy()
            rows.reshape(-1)[-1] = -rows.reshape(-1)[-1]
            return own(rows, kind)

        monkeypatch.setattr(gguf_file.gguf, "quantize", changed)
    else:
        mine = gguf.GGUFWriter.add_tensor_info

        def renamed(self: Any, name: str, *given: Any, **more: Any) -> None:
            mine(self, name.replace("output_norm", "output_nor"), *given, **more)

        monkeypatch.setattr(gguf.GGUFWriter, "add_tensor_info", renamed)
    with pytest.raises(EnvironmentRefused, check=wording):
        export_gguf(model, tmp_path / "tiny.gguf", dtype="bfloat16", vocabulary="placeholders")
    assert not [*tmp_path.iterdir()]


def known(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a tokenizer split as GPT-2's does."""
    sums = hashlib.sha256(str(tokenizer(vocabulary._TEXT)["input_ids"]).encode()).hexdigest()
    monkeypatch.setitem(vocabulary.KNOWN, sums, "gpt-2")


def test_a_tokenizer_goes_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    tokenizer = models.byte_tokenizer(template=template)
    tokenizer.add_tokens(["<|odd|>", "plain"])
    model = load(str(models.save(tmp_path / "own", tokenizer)), device="cpu")
    with pytest.raises(UsageError, check=wording):
        export_gguf(model, tmp_path / "x.gguf", dtype="float32", vocabulary="tokenizer")
    known(tokenizer, monkeypatch)
    made = export_gguf(model, tmp_path / "x.gguf", dtype="float32", vocabulary="tokenizer")
    stored = {name: field.contents() for name, field in gguf.GGUFReader(made.path).fields.items()}
    assert stored["general.name"] == "own"
    assert (stored["tokenizer.ggml.model"], stored["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert stored["tokenizer.chat_template"] == template
    assert (stored["tokenizer.ggml.eos_token_id"], stored["tokenizer.ggml.bos_token_id"]) == (0, 1)
    assert stored["tokenizer.ggml.add_bos_token"] is False
    tokens, types = stored["tokenizer.ggml.tokens"], stored["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 320
    assert tokens[:3] == ["</s>", "<s>", "!"]
    kinds = [gguf.TokenType(kind).name for kind in types]
    assert kinds[:258] == ["CONTROL", "CONTROL", *["NORMAL"] * 256]
    assert (tokens[258:261], kinds[258:261]) == (
        ["<|odd|>", "plain", "[PAD260]"],
        ["CONTROL", "USER_DEFINED", "UNUSED"],
    )
    assert set(kinds[260:]) == {"UNUSED"}


def test_the_embedded_tokenizer_is_one_that_llama_cpp_knows(smollm2: LoadedModel) -> None:
    assert vocabulary.splitting_of(smollm2) == "smollm"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_loads_again(
    dtype: str, smollm2: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export_gguf(smollm2, tmp_path / "smol.gguf", dtype=dtype, vocabulary="tokenizer")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    again = load(str(made.path), dtype=dtype, device="cpu")
    assert again.spec.fingerprint == made.fingerprint
    assert again.stop_ids == smollm2.stop_ids
    assert again.tokenizer.chat_template == smollm2.tokenizer.chat_template
    texts = ["def f(x):\n\treturn x ** 2  # 12345 naïve\n", "  I've 3.14 😀<|im_end|>\n\n", vocabulary._TEXT]
    for text in texts:
        for chat in (False, True):
            prompt = Prompt("p", text, chat=chat)
            assert again.encode(prompt) == smollm2.encode(prompt)
    if dtype == "float32":
        ids = torch.tensor([smollm2.encode(Prompt("p", texts[0], chat=True))])
        with torch.inference_mode():
            assert torch.equal(again.model(ids).logits, smollm2.model(ids).logits)
