"""Adapters by --model: merged into the weights that they were made for, and refused on any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import prompt, save, save_adapter
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.models import CARD, names
from specbench.models.adapters import fingerprint, fingerprints
from specbench.models.loader import load

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """A random adapter for it, as PEFT saves one, and what the model says with it."""
    model = save_adapter(base, tmp_path / "adapter")
    torch.save(model(IDS).logits, tmp_path / "says.pt")
    return tmp_path / "adapter"


IDS = torch.tensor([prompt(12, 200)])


def test_it_says_what_it_said_in_training_and_nothing_of_peft_is_left(adapter: Path, base: Path) -> None:
    loaded = load(str(adapter))
    says = torch.load(adapter.parent / "says.pt")
    torch.testing.assert_close(loaded.model(IDS).logits, says, atol=1e-4, rtol=1e-4)
    plain = load(str(base))
    assert (loaded.model(IDS).logits - plain.model(IDS).logits).abs().max() > 0.1
    assert {name for name, _ in loaded.model.named_modules()} == {name for name, _ in plain.model.named_modules()}
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.spec.name, loaded.spec.source, loaded.spec.base) == ("adapter", "adapter", "base")
    assert loaded.spec.fingerprint == fingerprint(loaded.model) != plain.spec.fingerprint
    assert loaded.spec.parameters == plain.spec.parameters
    assert plain.spec.base is None
    assert loaded.stop_ids == plain.stop_ids


DTYPES = ("float32", "bfloat16", "float16")


def test_the_base_it_was_trained_on_is_known_in_every_precision(adapter: Path, base: Path) -> None:
    (adapter / CARD).write_text(json.dumps({"base_fingerprints": fingerprints(load(str(base)).model)}))
    assert [load(str(adapter), dtype=dtype).spec.dtype for dtype in DTYPES] == list(DTYPES)
    with torch.no_grad():
        moved = load(str(base)).model
        moved.model.norm.weight *= 1.5
    moved.save_pretrained(base)
    for dtype in DTYPES:
        with pytest.raises(UsageError, check=wording):
            load(str(adapter), dtype=dtype)


def test_an_alias_brings_an_adapter_of_the_package(
    adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"title": "", "adapter": "adapter", "base": "toy", "method": "jf"}
    entries = {"toy-jf": entry, "toy": {"title": "", "hub": str(base), "template": "vicuna"}}
    monkeypatch.setattr(names, "aliases", lambda: entries)
    monkeypatch.setattr(names, "_PACKAGE", tmp_path)
    _rename_base(adapter, "toy")
    source = names.resolve("toy-jf")
    assert (source.kind, source.name, source.shown) == ("adapter", "toy-jf", "adapter")
    loaded = load("toy-jf")
    assert (loaded.spec.name, loaded.spec.base, loaded.spec.template) == ("toy-jf", "toy", "vicuna")
    assert loaded.has_chat_template


def _rename_base(adapter: Path, name: Any) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": name}))


def _drop_one(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    save_file(dict(list(tensors.items())[1:]), adapter / WEIGHTS)


def _reshape_one(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    first = next(iter(tensors))
    save_file({**tensors, first: torch.zeros(3, 3)}, adapter / WEIGHTS)


def _prompt_tuning(adapter: Path) -> None:
    from peft import PromptTuningConfig, get_peft_model

    model: Any = get_peft_model(
        load("config:tiny").model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    model.peft_config["default"].base_model_name_or_path = "config:tiny"
    model.save_pretrained(adapter)


HARMS: list[Callable[[Path], Any]] = [
    lambda folder: (folder / WEIGHTS).unlink(),
    lambda folder: (folder / WEIGHTS).write_bytes(b"no"),
    _drop_one,
    _reshape_one,
    _prompt_tuning,
    lambda folder: (folder / CARD).write_text("{"),
    lambda folder: (folder / "adapter_config.json").write_text("{"),
    lambda folder: _rename_base(folder, None),
    lambda folder: _rename_base(folder, "smollm2-13m"),
    lambda folder: _rename_base(folder, f"{folder}{40 * '/.'}"),  # so long that the message cuts it everywhere
]


def test_what_cannot_be_laid_on_is_one_line(adapter: Path, tmp_path: Path) -> None:
    for number, harm in enumerate(HARMS):
        folder = shutil.copytree(adapter, tmp_path / str(number) / "adapter")
        harm(folder)
        with pytest.raises(UsageError, check=wording) as raised:
            load(str(folder))
        assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, check=wording):
        load(str(adapter), revision="main")
