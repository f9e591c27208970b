"""Tapped layers: what they put out for the tokens that a call put in the cache, in their order."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.decoders import hiding_tree
from support.models import attached, autoregressive, layer_outputs, prompt, supported
from support.wording import wording

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.engine import graphs, pack, stepper

TAPS = (0, 1)
ATOL = 2e-5


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_features_are_those_of_one_forward_over_the_whole_text(
    family: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    monkeypatch.setattr(stepper, "PREFILL_CHUNK", 8)  # the prompt comes in three parts
    model = supported(family)
    config = model.config
    layers = config.num_hidden_layers
    vocab = model.get_input_embeddings().num_embeddings
    taps = *(layer for layer in TAPS if layer < layers - 1), layers  # transformers normalises the last layer's output
    ids = prompt(19, vocab)
    rng = random.Random(0)
    seen: list[Any] = []
    with attached(model, capacity=60, max_rows=16, graphs=captured or None) as engine:
        truth = autoregressive(engine, ids, 12)
        slot = engine.alloc()
        result = engine.prefill(slot, ids, taps=taps)
        out = list(result.emitted)
        assert result.hidden is not None
        assert result.hidden.shape == (len(ids), len(taps) * config.hidden_size)
        seen.append(result.hidden.clone())
        while len(out) < 10:
            tree = hiding_tree(rng, out[-1], truth[len(out) : len(out) + rng.randrange(4)], vocab, 8, apart=True)
            result = engine.step({slot: tree}, taps=taps)[slot]
            assert result.hidden is not None
            assert len(result.hidden) == len(result.path)
            seen.append(result.hidden.clone())
            out += result.emitted
        assert engine.step({slot: tree})[slot].hidden is None
    whole = layer_outputs(model, torch.tensor([[*ids, *out[:-1]]]))
    expected = torch.cat([whole[min(layer, layers - 1)][0] for layer in taps], dim=-1)
    found = torch.cat(seen)
    assert (found - expected).abs().max() <= ATOL * expected.abs().max()


def test_a_rewound_slot_goes_on_from_there() -> None:
    model = supported("llama")
    ids = prompt(9, 97)
    with attached(model, capacity=40, max_rows=4) as engine:
        truth = autoregressive(engine, ids, 6)
        slot = engine.alloc()
        engine.prefill(slot, ids)
        engine.step({slot: hiding_tree(random.Random(0), truth[0], truth[1:3], 97, 1)})
        engine.rewind(slot, len(ids))
        out = engine.step({slot: hiding_tree(random.Random(1), truth[0], truth[1:3], 97, 1)})[slot].emitted
        assert out == truth[1:4]
        with pytest.raises(ValueError, check=wording):
            engine.rewind(slot, 30)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("sequences", [1, 3])
def test_step_times_are_measured_by_rows(sequences: int, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    seen: list[dict[int, tuple[int, int]]] = []  # slot -> rows and cached tokens
    fill = pack.fill

    def watched(packed: Any, shape: Any, batch: Any, cached: Any, *more: Any) -> None:
        seen.append({slot: (len(tree), int(cached[slot])) for slot, tree in batch.trees.items()})
        fill(packed, shape, batch, cached, *more)

    with attached(supported("llama"), capacity=40, max_rows=9, slots=3, graphs=captured or None) as engine:
        monkeypatch.setattr(pack, "fill", watched)
        found = engine.step_seconds(9, sequences, 30)
        assert [rows for rows, _ in found] == [1, 2, 4, 8, 16]
        assert all(seconds > 0 for _, seconds in found)
        assert seen[-1] == dict.fromkeys(range(sequences), (9, 30))
        assert engine.alloc() == 0  # nothing is left in use
