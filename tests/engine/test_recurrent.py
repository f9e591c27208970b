"""States of recurrent layers: through accepted and rejected drafts, rewinds, slots, and chains inside a text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.decoders import hiding_tree, random_tree
from support.models import RECURRENT, attached, autoregressive, decode, prompt, supported
from support.wording import wording
from torch import nn

from specbench.common import UsageError
from specbench.decoding import TokenTree
from specbench.engine import Chain, next_tokens
from specbench.engine.engine import Engine
from specbench.engine.layers import recurrent

VOCAB = 97


@pytest.fixture(params=sorted(RECURRENT))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with attached(supported(request.param), slots=3, capacity=96, max_rows=32) as made:
        yield made


def states(engine: Engine, slot: int) -> list[torch.Tensor]:
    """Copies of a slot's states in all layers."""
    assert engine.cache.recurrent is not None
    return [each[slot].clone() for layer in engine.cache.recurrent._layers for each in layer.states.values()]


def after(engine: Engine, text: list[int]) -> list[torch.Tensor]:
    """The states after a text, from a prefill."""
    slot = engine.alloc()
    engine.prefill(slot, text)
    found = states(engine, slot)
    engine.free(slot)
    return found


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("right", [0, 1, 3, 5])
@pytest.mark.parametrize("wide", [False, True], ids=["chain", "tree"])
def test_states_are_those_after_the_accepted_rows(engine: Engine, right: int, wide: bool) -> None:
    ids = prompt(9, VOCAB)
    expected = autoregressive(engine, ids, 8)
    wrong = [(token + 1) % VOCAB for token in expected[1 + right : 6]]
    slot, other = engine.alloc(), engine.alloc()
    engine.prefill(slot, ids)
    engine.prefill(other, prompt(5, VOCAB, 1))
    tree = TokenTree.chain([expected[0], *expected[1 : 1 + right], *wrong])
    if wide:
        tree = hiding_tree(random.Random(right), expected[0], expected[1 : 1 + right], VOCAB, 12)
    trees = {slot: tree, other: random_tree(random.Random(1), 5, VOCAB, 7)}
    result = engine.step(trees)[slot]
    assert result.emitted[: 1 + right] == expected[1 : 2 + right]
    committed = [tree.tokens[row] for row in result.path]
    assert_same(states(engine, slot), after(engine, [*ids, *committed]))
    assert list(engine.text(slot)) == [*ids, *committed]


def test_a_rewound_slot_has_the_states_of_the_shorter_text(engine: Engine) -> None:
    ids = prompt(12, VOCAB)
    slot = engine.alloc()
    engine.prefill(slot, ids)
    engine.rewind(slot, 7)
    assert engine.length(slot) == 7
    assert_same(states(engine, slot), after(engine, ids[:7]))
    expected = autoregressive(engine, [*ids[:7], 3], 6)
    assert engine.prefill(slot, [3]).emitted == expected[:1]
    engine.rewind(slot, 0)
    assert not any(bool(each.any()) for each in states(engine, slot))


def test_a_new_sequence_starts_without_states(engine: Engine) -> None:
    ids = prompt(11, VOCAB)
    first = autoregressive(engine, ids, 10)
    autoregressive(engine, prompt(20, VOCAB, 3), 10)
    assert autoregressive(engine, ids, 10) == first


def test_chains_inside_a_text_are_read_with_the_text(engine: Engine) -> None:
    ids = prompt(14, VOCAB)
    slot = engine.alloc()
    engine.prefill(slot, ids)
    before = states(engine, slot)
    chains = [Chain(slot, 5, ids[5:9]), Chain(slot, 14, [7, 8]), Chain(slot, 0, ids[:3])]
    found = next_tokens(engine, chains)
    with engine.detached(), torch.inference_mode():
        for chain, tokens in zip(chains, found, strict=True):
            whole = torch.tensor([[*ids[: chain.start], *chain.tokens]])
            assert engine.model(whole).logits[0, chain.start :].argmax(-1).tolist() == tokens
    assert_same(states(engine, slot), before)


def test_the_models_own_forward_is_as_before_when_closed() -> None:
    model, ids = supported("qwen3_next"), torch.tensor([prompt(9, VOCAB)])
    with torch.inference_mode():
        before = model(ids).logits
    with attached(model, capacity=32, max_rows=4) as engine:
        decode(engine, prompt(9, VOCAB), 6, lambda out: None)
        with engine.detached(), torch.inference_mode():
            assert torch.equal(model(ids).logits, before)
    assert not any("forward" in module.__dict__ for module in model.modules())
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, before)


def test_a_deep_tree_reads_a_layer_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(supported("qwen3_next"), capacity=64, max_rows=32) as engine:
        slot = engine.alloc()
        first = engine.prefill(slot, prompt(9, VOCAB)).emitted[0]
        layer = engine.cache.recurrent._layers[0]  # type: ignore[union-attr]
        calls: list[int] = []
        own = layer._own

        def counted(**given: Any) -> Any:
            calls.append(given["hidden_states"].shape[1])
            return own(**given)

        monkeypatch.setattr(layer, "_own", counted)
        engine.step({slot: hiding_tree(random.Random(0), first, prompt(6, VOCAB, 4), VOCAB, 9)})
        assert len(calls) == 2  # over the paths, and over the accepted rows
        calls.clear()
        engine.step({slot: TokenTree.chain([first])})
        assert calls == [1]


class _Forgets(nn.Module):
    """A layer whose calls of several tokens ignore the state before them, as Mamba's in transformers do."""

    def __init__(self, ignores: bool) -> None:
        super().__init__()
        self.linear, self.ignores = nn.Linear(4, 4), ignores

    def forward(self, hidden_states: torch.Tensor, cache_params: Any) -> torch.Tensor:
        state = cache_params.get_recurrent_state(0)
        if self.ignores and hidden_states.shape[1] > 1:
            state = torch.zeros_like(state)
        outputs = []
        for token in self.linear(hidden_states).unbind(1):
            state = 0.5 * state + token
            outputs.append(state)
        cache_params.update_recurrent_state(state, 0)
        return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("ignores", [False, True])
def test_a_layer_that_continues_only_token_by_token_is_found(ignores: bool) -> None:
    shapes = {("recurrent", 0): recurrent.StateShape((4,), torch.float32)}
    assert recurrent._continues(_Forgets(ignores), shapes, 4) is not ignores


def test_compiled_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="recurrent", check=wording):
        Engine(supported("lfm2"), capacity=16, max_rows=2, compile=True)


def test_the_report_names_the_layers_and_their_bytes(engine: Engine) -> None:
    report = engine.report()["recurrent"]
    assert report["layers"] >= 1
    assert report["state_bytes"] == 3 * sum(each.nbytes for each in states(engine, 0))
    assert engine.finite(engine.alloc())
