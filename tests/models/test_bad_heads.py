"""Damaged draft heads: a head, or one sentence that names it, whatever is wrong with its files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mutants import mutant
from safetensors.torch import load_file, save_file
from support import decoders
from support.models import tiny_llama
from support.wording import wording

from specbench.common.errors import SpecbenchError, UsageError
from specbench.heads.block_head import BlockHead
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.head import DraftHead
from specbench.methods.medusa.config import HeadConfig as MedusaConfig
from specbench.methods.medusa.head import DraftHead as MedusaHead

FILE, CONFIG = "model.safetensors", "config.json"


def eagle3(folder: Path) -> Callable[[], Any]:
    """Writes a head, and gives what reads it."""
    target = tiny_llama(97, num_hidden_layers=8).config
    DraftHead.random(HeadConfig.for_target(target, draft_vocab_size=40)).save(folder)
    return lambda: DraftHead.read(DraftHead.find(str(folder)), target)


def jetspec(folder: Path) -> Callable[[], Any]:
    decoders.head().save(folder)
    return lambda: BlockHead.load(folder)


def medusa(folder: Path) -> Callable[[], Any]:
    target = tiny_llama(97, num_hidden_layers=2).config
    MedusaHead.random(MedusaConfig.for_target(target, draft_vocab_size=40)).save(folder)
    return lambda: MedusaHead.read(MedusaHead.find(str(folder)), target)


KINDS = pytest.mark.parametrize("kind", [eagle3, jetspec, medusa])


@KINDS
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(kind: Callable[[Path], Any], value: float, tmp_path: Path) -> None:
    read = kind(tmp_path)
    held = load_file(tmp_path / FILE)
    held[max(name for name in held if name.endswith("weight"))][-1] = value
    save_file(held, tmp_path / FILE)
    with pytest.raises(UsageError, check=wording):
        read()


@KINDS
@pytest.mark.parametrize("file", [FILE, CONFIG])
@pytest.mark.parametrize("count", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_any_damage_is_a_head_or_a_sentence(kind: Callable[[Path], Any], file: str, count: int, tmp_path: Path) -> None:
    read = kind(tmp_path)
    good = (tmp_path / file).read_bytes()
    for at in range(count):
        (tmp_path / file).write_bytes(
            mutant(random.Random(f"{file}{at}"), good, "json" if file == CONFIG else "binary")
        )
        began, message = time.process_time(), ""
        try:
            found = read()
            assert all(bool(torch.isfinite(parameter).all()) for parameter in found.parameters())
        except SpecbenchError as error:
            message = str(error)
        assert message.isprintable()
        assert len(message) < 1000
        assert time.process_time() - began < 2
