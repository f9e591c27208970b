"""Damaged model folders, adapters and heads through the whole load: a model, or one sentence that names it."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from mutants import mutant
from support.models import save, save_adapter
from support.wording import wording

from specbench.common.errors import SpecbenchError, UsageError
from specbench.common.prompt import Prompt
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
        began, message = time.process_time(), ""
        try:
            loaded = load(str(into))
            loaded.decode(loaded.encode(Prompt("p", "Hi", chat=False)))
        except SpecbenchError as error:
            message = str(error)
        except BaseException as error:
            raise AssertionError(f"mutant {at} of {file}: {(into / file).read_bytes()[:1000]!r}") from error
        assert message.isprintable()
        assert len(message) < 1000
        assert not message or any(words in message for words in (into.name, "prompt p", "memory")), message
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
