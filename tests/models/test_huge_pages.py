"""Weights on a CPU lie in huge pages, one after the other, with the values and the sharing they had."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specbench.models import memory
from specbench.models.loader import load
from specbench.models.memory import use_huge_pages
from specbench.models.packed import step_tensors

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")


def advised(address: int) -> bool:
    """Whether the kernel was asked for huge pages at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return " hg" in line
    return False


def matrices() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(700, 600), torch.randn(3, 5), torch.randn(512, 512).to(torch.bfloat16), torch.randn(256, 512)]


def test_tensors_move_in_order_with_their_values() -> None:
    tensors = matrices()
    before = [tensor.clone() for tensor in tensors]
    use_huge_pages(tensors)
    assert all(map(torch.equal, tensors, before))
    places = [tensor.data_ptr() for tensor in tensors]
    assert places == sorted(places)
    assert places[0] % (2 << 20) == 0
    assert places[-1] < places[0] + (4 << 20)
    assert all(place % 64 == 0 for place in places)
    assert advised(places[0])


def test_tied_weights_stay_tied() -> None:
    embedding, head = nn.Embedding(2000, 300), nn.Linear(300, 2000, bias=False)
    head.weight = nn.Parameter(embedding.weight.detach())  # two parameters, one memory
    use_huge_pages([embedding.weight, head.weight])
    assert embedding.weight.data_ptr() == head.weight.data_ptr()
    assert advised(head.weight.data_ptr())


@pytest.mark.parametrize("why", ["small", "no memory", "refused"])
def test_tensors_that_cannot_move_stay(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = matrices()[1:2] if why == "small" else matrices()
    before = [tensor.data_ptr() for tensor in tensors]
    if why == "no memory":
        monkeypatch.setattr(memory, "free_ram_bytes", lambda: 1 << 20)
    if why == "refused":

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError("cannot allocate memory")

        monkeypatch.setattr(memory.mmap, "mmap", refuse)
    use_huge_pages(tensors)
    assert [tensor.data_ptr() for tensor in tensors] == before


def test_a_loaded_model_lies_in_huge_pages() -> None:
    model: Any = load("smollm2-135m").model
    places = [tensor.data_ptr() for tensor in step_tensors(model)]
    assert all(map(advised, places[: -len(places) // 10 : 20]))  # few small ones at the end may stay
    assert model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
