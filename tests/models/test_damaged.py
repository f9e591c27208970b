"""Damaged model folders, adapters and heads through the whole load: a model, or one sentence that names it."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mutants import mutant
from support.models import save, save_adapter
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.common.prompt import Prompt
from specbench.models import names
from specbench.models.loader import load

FILES = dict.fromkeys(["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"], "json")
FILES["model.safetensors"] = "binary"
OF_AN_ADAPTER = {"adapter_config.json": "json", "adapter_model.safetensors": "binary"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Path:
    save_adapter(folder, folder.parent / "adapter")
    return folder.parent / "adapter"


def fuzz(good: Path, file: str, form: str, into: Path, count: int) -> None:
    content = (good / file).read_bytes()
    shutil.copytree(good, into)
    for at in range(count):
        (into / file).write_bytes(mutant(random.Random(f"{file}/{at}"), content, form))
        began, said = time.process_time(), ""
        try:
            loaded = load(str(into))
            loaded.decode(loaded.encode(Prompt("p", "Hi", chat=False)))
        except SpecbenchError as error:
            said = str(error)
        except BaseException as error:
            raise AssertionError(f"mutant {at} of {file}: {(into / file).read_bytes()[:1000]!r}") from error
        assert said.isprintable()
        assert len(said) < 1000
        assert not said or any(words in said for words in (into.name, "prompt p", "no memory")), said
        assert time.process_time() - began < 30


@pytest.mark.parametrize("file", [*FILES, *OF_AN_ADAPTER])
@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_a_damaged_folder_is_a_model_or_a_sentence(
    folder: Path, adapter: Path, file: str, count: int, tmp_path: Path
) -> None:
    good = folder if file in FILES else adapter
    fuzz(good, file, {**FILES, **OF_AN_ADAPTER}[file], tmp_path / "damaged", count)


def test_a_pipe_in_a_model_folder_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    for file in ("tokenizer.json", "model.safetensors", "generation_config.json"):
        shutil.copytree(folder, tmp_path / file)
        (tmp_path / file / file).unlink()
        os.mkfifo(tmp_path / file / file)
        with pytest.raises(UsageError, check=wording):
            load(str(tmp_path / file))


def test_absurd_sizes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    no_memory = EnvironmentRefused, "no memory for config:mine.json: its weights have"
    no_model = UsageError, "config:mine.json cannot be loaded as a causal LM"
    cases: list[tuple[dict[str, Any], type[SpecbenchError], str]] = [
        ({"num_hidden_layers": 10**9}, UsageError, "field 'num_hidden_layers': 1e.09 is more than 10,000"),
        ({"vocab_size": 10**12}, *no_memory),
        ({"intermediate_size": 10**10}, *no_memory),
        ({"hidden_size": "wide"}, *no_model),
        ({"model_type": ["llama"]}, *no_model),
        ({"model_type": None}, *no_model),
    ]
    tiny = json.loads(names.configs()["tiny"].read_text())
    for change, kind, _ in cases:
        (tmp_path / "mine.json").write_text(json.dumps({**tiny, **change}))
        with pytest.raises(kind, check=wording):
            load(f"config:{tmp_path / 'mine.json'}")


def test_what_goes_wrong_within_a_chat_template_is_a_sentence(folder: Path) -> None:
    loaded = load(str(folder))
    for template in ("{{ 1 / 0 }}", "{{ messages[9].x.y }}", "{{ messages.nothing() }}", "{{ 'a' + 1 }}"):
        loaded.tokenizer.chat_template = template
        with pytest.raises(UsageError, check=wording):
            loaded.encode(Prompt("p", "Hi", chat=True))


def test_dummy_weights_are_what_they_were(folder: Path) -> None:
    """Measuring a configuration before its weights are made draws nothing of theirs."""
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = load("config:tiny")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.spec.fingerprint == load("config:tiny").spec.fingerprint
