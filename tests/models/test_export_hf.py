"""Folders as transformers writes them: the loader gives the same model again, and what it cannot is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import models
from support.models import FAMILIES, loaded, prompt, tiny
from support.wording import wording
from transformers import AutoModelForCausalLM, GgufConfig

from specbench.common.errors import EnvironmentRefused
from specbench.common.prompt import Prompt
from specbench.models.adapters import fingerprint
from specbench.models.export.gguf_file import export_gguf
from specbench.models.export.hf_folder import export_hf
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load

IDS = torch.tensor([prompt(20, 97)])


def again(folder: Path, dtype: str) -> LoadedModel:
    """What the loader makes of a folder; a tokenizer of bytes is put into it, for dummy weights have none."""
    assert not [*folder.glob("tokenizer*")]
    models.byte_tokenizer().save_pretrained(folder)
    return load(str(folder), dtype=dtype, device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama, tied", "llama with biases", "qwen2", "qwen3", "gemma3"])
def test_the_loader_gives_the_same_model(family: str, dtype: str, tmp_path: Path) -> None:
    model = tiny({**models.SUPPORTED, **FAMILIES}[family])
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    made = export_hf(model, tmp_path / "tiny", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())
    weights = tmp_path / "tiny" / "model.safetensors"
    sums = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert made.sha256 == hashlib.sha256(f"{sums}  model.safetensors\n".encode()).hexdigest()
    assert (made.path, made.format, made.dtype) == (tmp_path / "tiny", "hf", dtype)
    assert made.bytes == weights.stat().st_size
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["dtype"] == dtype
    found = again(made.path, dtype)
    assert found.spec.fingerprint == made.fingerprint
    assert found.spec.dtype == dtype
    if dtype == "float32":
        assert made.fingerprint == model.spec.fingerprint
        assert torch.equal(found.model(IDS).logits, model.model(IDS).logits)


def test_a_checkpoint_keeps_tokenizer_template_and_stop_ids(tmp_path: Path) -> None:
    template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    model = load(str(models.save(tmp_path / "own", models.byte_tokenizer(template=template))), device="cpu")
    model.model.generation_config.eos_token_id = [0, 7]
    made = export_hf(model, tmp_path / "copy", dtype="float32")
    found = load(str(made.path), device="cpu")
    assert found.spec.fingerprint == model.spec.fingerprint == made.fingerprint
    assert found.stop_ids == {0, 7}
    asked = Prompt("p", "two\tté", chat=True)
    assert found.encode(asked) == model.encode(asked)


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    base = models.save(tmp_path / "base")
    models.save_adapter(base, tmp_path / "adapter")
    model = load(str(tmp_path / "adapter"), device="cpu")
    found = load(str(export_hf(model, tmp_path / "copy", dtype="float32").path), device="cpu")
    assert found.spec.fingerprint == model.spec.fingerprint != load(str(base), device="cpu").spec.fingerprint
    assert torch.equal(found.model(IDS).logits, model.model(IDS).logits)
    assert not [*(tmp_path / "copy").glob("adapter*")]


def test_what_was_unpacked_from_gguf_is_a_plain_checkpoint(tmp_path: Path) -> None:
    model = tiny(FAMILIES["llama"])
    export_gguf(model, tmp_path / "tiny.gguf", dtype="float32", vocabulary="placeholders")
    plain = GgufConfig(dequantize=True)
    unpacked = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", quantization_config=plain, dtype=torch.float32
    )
    for dtype in ("float32", "bfloat16"):
        made = export_hf(loaded(unpacked), tmp_path / dtype, dtype=dtype)
        assert "quantization_config" not in json.loads((made.path / "config.json").read_text())
        assert again(made.path, dtype).spec.fingerprint == fingerprint(model.model, getattr(torch, dtype))


@pytest.mark.parametrize("fault", ["write", "value", "missing"])
def test_a_failing_write_leaves_nothing(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(FAMILIES["llama"])
    save = model.model.save_pretrained

    def broken(folder: Path, state_dict: dict[str, Any]) -> None:
        if fault == "value":
            state_dict["model.norm.weight"] = state_dict["model.norm.weight"].nextafter(torch.tensor(9.0))
        if fault == "missing":
            del state_dict["model.norm.weight"]
        save(folder, state_dict=state_dict)
        if fault == "write":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(model.model, "save_pretrained", broken)
    with pytest.raises(EnvironmentRefused, check=wording):
        export_hf(model, tmp_path / "tiny", dtype="float32")
    assert not [*tmp_path.iterdir()]
