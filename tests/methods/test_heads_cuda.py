"""Passes of draft heads on a CUDA device: graphs and kernels against eager passes on the oracle."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support import decoders
from support.models import attached, autoregressive, prompt, supported

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


HEADS = [("jetspec", "random"), ("jetspec", "random-dflash")]
HEADS += [(name, "random") for name in ("eagle3", "dspark", "medusa", "eagle", "mtp")]


@pytest.mark.parametrize(("name", "head"), HEADS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_graphs_and_kernels_draft_what_the_oracle_drafts(family: str, name: str, head: str) -> None:
    model = copy.deepcopy(supported(family)).to("cuda")
    vocab = model.get_output_embeddings().weight.shape[0]
    prompts = [prompt(length, vocab, seed) for seed, length in enumerate((1, 33, 7, 16))]
    found: list[Any] = []
    for graphs in (False, True):
        with attached(model, slots=3, capacity=70, max_rows=96, graphs=graphs) as engine:
            result = [autoregressive(engine, ids, 24) for ids in prompts]
            method = decoders.ready(decoders.with_options(name, {"head": head}), engine)
            records = decoders.served(engine, method, prompts, 24, 3)
            assert [record.output_ids for record in records] == result
            found.append([record.accepted_lengths for record in records])
    assert found[0] == found[1]
