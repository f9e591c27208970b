"""Untrusted weights: only safetensors are read, and their headers are checked before memory is allocated."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import mutant
from safetensors.torch import load_file, save_file
from support.models import save, save_adapter
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.common.prompt import Prompt
from specbench.models import loader, weights
from specbench.models.loader import load

MARK = "ran"
NORM = "model.norm.weight"


class Pickled:
    """Makes a file where it is unpickled."""

    def __init__(self, into: Path) -> None:
        self._into = into

    def __reduce__(self) -> Any:
        return Path.touch, (self._into / MARK,)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "bad")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_weights(folder: Path, **values: torch.Tensor | None) -> None:
    """Puts tensors in place of those whose names end so; None takes one out."""
    held: dict[str, torch.Tensor | None] = dict(load_file(folder / weights.SINGLE))
    for end, value in values.items():
        (name,) = (each for each in held if each.endswith(end.replace("__", ".")))
        held[name] = value
    left = {name: value for name, value in held.items() if value is not None}
    save_file(left, folder / weights.SINGLE, metadata={"format": "pt"})


def split(folder: Path) -> dict[str, str]:
    """Writes the weights as two files and an index; returns its map."""
    held = load_file(folder / weights.SINGLE)
    (folder / weights.SINGLE).unlink()
    names = sorted(held)
    files = {f"part-{at}.safetensors": names[at::2] for at in (0, 1)}
    for file, part in files.items():
        save_file({name: held[name] for name in part}, folder / file, metadata={"format": "pt"})
    mapped = {name: file for file, part in files.items() for name in part}
    (folder / weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": mapped}))
    return mapped


# ------------------------------------------------------------------------------------------------------------- pickles


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin", "weights.ckpt"])
def test_a_pickle_is_refused_and_not_opened(file: str, folder: Path) -> None:
    torch.save({"a": Pickled(folder)}, folder / file)
    assert load(str(folder)).spec.name == "bad"  # a pickle next to safetensors is ignored
    (folder / weights.SINGLE).unlink()
    index = {"metadata": {}, "weight_map": {NORM: file}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(
        UsageError,
        check=wording,
    ):
        load(str(folder))
    (folder / weights.INDEX).write_text(json.dumps(index))
    with pytest.raises(UsageError, check=wording):
        load(str(folder))
    change(folder / "config.json", transformers_weights=file)
    with pytest.raises(UsageError, check=wording):
        load(str(folder))
    assert not (folder / MARK).exists()


def test_what_is_in_safetensors_clothes_is_not_unpickled(folder: Path) -> None:
    torch.save({"a": Pickled(folder)}, folder / weights.SINGLE)
    with pytest.raises(UsageError, check=wording):
        load(str(folder))
    assert not (folder / MARK).exists()


def test_a_pickled_adapter_is_refused_and_not_opened(good: Path, tmp_path: Path) -> None:
    save_adapter(good, tmp_path / "own")
    torch.save({"a": Pickled(tmp_path)}, tmp_path / "own" / "adapter_model.bin")
    assert load(str(tmp_path / "own")).spec.base == "good"
    (tmp_path / "own" / "adapter_model.safetensors").unlink()
    with pytest.raises(UsageError, check=wording):
        load(str(tmp_path / "own"))
    assert not (tmp_path / MARK).exists()


def test_a_hub_id_brings_no_pickle(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a repository has is fetched by name, and is looked at as a folder is."""
    asked: list[Any] = []

    def fetch(location: str, *, allow_patterns: list[str], **more: Any) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(loader, "snapshot_download", fetch)
    assert loader._folder("someone/toy", None, cached=False) == folder
    assert asked == [["*.json", "*.jinja"], [weights.SINGLE]]
    split(folder)
    loader._folder("someone/toy", None, cached=False)
    assert asked[3] == [weights.SINGLE, "part-0.safetensors", "part-1.safetensors"]
    torch.save({"a": Pickled(folder)}, folder / "pytorch_model.bin")
    for file in (weights.INDEX, "part-0.safetensors", "part-1.safetensors"):
        (folder / file).unlink()
    with pytest.raises(UsageError, check=wording):
        load("someone/toy")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, check=wording):
        load("someone/toy")


# ------------------------------------------------------------------------------------- headers, indices, configurations


def header(content: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(begin: int, end: int, shape: list[int], kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_weights_of_another_shape_are_named_with_both(folder: Path) -> None:
    change(folder / "config.json", hidden_size=96)
    with pytest.raises(UsageError, check=wording):
        load(str(folder))


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    change_weights(folder, model__norm__weight=None)
    with pytest.raises(UsageError, check=wording):
        load(str(folder))
    change(folder / "config.json", num_hidden_layers=9_999)
    with pytest.raises(UsageError, check=wording):
        load(str(folder))


def test_an_index_names_files_of_its_folder(folder: Path, tmp_path: Path) -> None:
    mapped = split(folder)
    assert load(str(folder)).spec.name == "bad"
    first = next(iter(mapped))
    shutil.copy(folder / mapped[first], tmp_path / "outside.safetensors")
    for wrong in (
        "../outside.safetensors",
        str(tmp_path / "outside.safetensors"),
        "sub/x.safetensors",
        7,
        None,
        ["a"],
        "",
    ):
        (folder / weights.INDEX).write_text(json.dumps({"weight_map": {**mapped, first: wrong}}))
        with pytest.raises(UsageError, check=wording):
            load(str(folder))
    cases: Any = [
        {**mapped, first: "gone.safetensors"},
        {**mapped, "extra.weight": mapped[first]},
        {},
        [],
    ]
    for content in cases:
        (folder / weights.INDEX).write_text(json.dumps({"weight_map": content}))
        with pytest.raises(UsageError, check=wording):
            load(str(folder))


def test_memory_is_asked_for_by_headers_before_any_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2**42
    text = json.dumps({"model.embed_tokens.weight": entry(0, size, [2**20, 2**20])}).encode()
    with (folder / weights.SINGLE).open("wb") as file:  # nearly all of it a hole
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    change(folder / "config.json", vocab_size=2**20, hidden_size=2**20, num_hidden_layers=1, intermediate_size=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EnvironmentRefused, match="bad"):
        load(str(folder))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


CONFIGS: list[dict[str, Any]] = [
    {"hidden_size": -64}, {"hidden_size": 0}, {"hidden_size": 1.5}, {"vocab_size": [1]}, {"num_attention_heads": 0},
    {"num_key_value_heads": 3}, {"head_dim": "8"}, {"rope_parameters": [1]}, {"hidden_act": "nothing"},
    {"num_hidden_layers": -1}, {"num_hidden_layers": "2"}, {"vocab_size": 10**12}, {"intermediate_size": 10**11},
    {"rms_norm_eps": "a"}, {"model_type": 5}, {"num_hidden_layers": 0}, {"num_hidden_layers": -(10**400)},
    {"num_hidden_layers": 10**400},
    {"num_attention_heads": None}, {"layer_types": ["a"]},
]  # fmt: skip


@pytest.mark.parametrize("change_", CONFIGS, ids=str)
def test_an_absurd_configuration_is_one_sentence(change_: dict[str, Any], folder: Path) -> None:
    change(folder / "config.json", **change_)
    with pytest.raises(SpecbenchError, check=wording) as raised:
        load(str(folder)).model(torch.tensor([[1, 2]]))
    assert str(raised.value).isprintable()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), indexed=st.booleans())
def test_any_header_and_any_index_is_tensors_or_a_sentence(seed: int, indexed: bool, tmp_path: Path) -> None:
    part = header({"a": entry(0, 16, [2, 2]), "b": entry(16, 20, [2], "BF16"), "__metadata__": {"x": "y"}}, bytes(20))
    index = json.dumps({"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}).encode()
    draw = random.Random(seed)
    (tmp_path / weights.SINGLE).unlink(missing_ok=True)
    (tmp_path / "one.safetensors").write_bytes(part)
    if indexed:
        (tmp_path / weights.INDEX).write_bytes(mutant(draw, index, "json"))
    else:
        (tmp_path / weights.SINGLE).write_bytes(mutant(draw, part, "binary"))
    began, message = time.process_time(), ""
    try:
        files = weights.files_of(tmp_path)
        assert all(file.parent == tmp_path for file in files)
        held = weights.headers(files)
        assert sum(each.count for each in held.values()) <= sum(file.stat().st_size * 2 for file in files)
    except SpecbenchError as error:
        message = str(error)
    assert message.isprintable()
    assert time.process_time() - began < 2


# -------------------------------------------------------------------------------------------- tokenizers, numbers, bits


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_weights_that_are_no_numbers_are_named(value: float, dtype: str, folder: Path) -> None:
    held = load_file(folder / weights.SINGLE)[NORM].clone()
    held[-1] = value
    change_weights(folder, model__norm__weight=held)
    with pytest.raises(UsageError, check=wording):
        load(str(folder), dtype=dtype)


def test_an_adapter_does_not_take_memory_by_its_configuration(good: Path, tmp_path: Path) -> None:
    save_adapter(good, tmp_path / "own")
    file = tmp_path / "own" / "adapter_config.json"
    kept = file.read_text()
    for changes in (
        {"r": 10**9},
        {"rank_pattern": {"q_proj": 10**9}},
        {"r": 10**400},
        {"layer_replication": [[0, 10**9]]},
    ):
        file.write_text(json.dumps({**json.loads(kept), **changes}))
        with pytest.raises(UsageError, check=wording):
            load(str(tmp_path / "own"))


def test_a_tokenizer_that_panics_is_one_sentence(folder: Path) -> None:
    wanders = {"type": "Split", "pattern": {"Regex": "(a+)+$b"}, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=wanders)
    with pytest.raises(UsageError, check=wording):
        load(str(folder)).encode(Prompt("p", "a" * 200, chat=False))


@pytest.mark.parametrize(
    "device",
    ["meta", "mps", "xla", "", "cpu:3", "cuda:-1", "cuda:", "cuda:1e3", "gpu", " cpu", "cpu\n", "x" * 9999, "\0"],
)
def test_devices_that_no_model_runs_on_are_refused_first(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_read", lambda *given, **more: pytest.fail("it was loaded"))
    with pytest.raises(UsageError, check=wording):
        load("config:tiny", device=device)
