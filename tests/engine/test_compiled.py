"""Compiled layers compute what the layers compute, for every family, and only while the engine has the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import SHARING, SUPPORTED, attached, autoregressive, build, decode, prompt, supported
from support.wording import wording
from torch import Tensor, nn

from specbench.common.errors import UsageError
from specbench.decoding.tree import TokenTree
from specbench.engine.attention.interface import LayerAttention, UnsupportedAttention
from specbench.engine.engine import Engine
from specbench.engine.layers import compiled

TREE = ([1, 2, 3, 4], [0, 0, 1, 2])


def _tree(out: list[int]) -> TokenTree:
    return TokenTree([out[-1], *TREE[0]], [-1, *TREE[1]])


def _scores(engine: Engine, ids: list[int]) -> Tensor:
    """Best scores of a prefill, of a tree and of a single row."""
    slot = engine.alloc()
    results = [engine.prefill(slot, ids, top_k=8)]
    results.append(engine.step({slot: _tree(results[0].emitted)}, top_k=8)[slot])
    results.append(engine.step({slot: TokenTree.chain([ids[0]])}, top_k=8)[slot])
    engine.free(slot)
    return torch.cat([result.top[0] for result in results if result.top])


def _switched(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if "forward" in module.__dict__}


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    """Compiled code of one test must not be the next one's."""
    yield
    torch.compiler.reset()


compiles = pytest.mark.slow  # a compiler takes seconds for the first piece of code


@compiles
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_family_compiled(name: str) -> None:
    from torch._dynamo.utils import counters

    model = supported(name)
    ids = prompt(12, model.config.vocab_size)
    before = _switched(model)
    with attached(model, capacity=64) as engine:
        plain, expected = autoregressive(engine, ids, 20), _scores(engine, ids)
    counters.clear()
    with attached(model, capacity=64, compile=True) as engine:
        assert autoregressive(engine, ids, 20) == plain
        compiled = counters["stats"]["unique_graphs"]
        assert decode(engine, ids, 20, _tree) == plain
        got = _scores(engine, ids)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    # One graph a kind of layer and shape, however many layers and row counts, and no break inside of a layer.
    assert 0 < compiled <= counters["stats"]["unique_graphs"] <= 8
    assert not counters["graph_break"]
    assert _switched(model) == before


@compiles
def test_no_layer_is_compiled_for_its_index_alone() -> None:
    from torch._dynamo.utils import counters

    config, kind, options = SUPPORTED["qwen3"]
    model, ids = build((config, kind, {**options, "num_hidden_layers": 12})), prompt(12, 97)
    counters.clear()
    with attached(model, capacity=64, compile=True) as engine:
        autoregressive(engine, ids, 4)
    assert 0 < counters["stats"]["unique_graphs"] <= 6


@compiles
@pytest.mark.parametrize("name", SHARING)
def test_layers_that_share_keys_and_values_are_not_compiled(name: str) -> None:
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(supported(name), capacity=64, compile=True)


@compiles
def test_taps_do_not_split_a_layer() -> None:
    from torch._dynamo.utils import counters

    model = supported("llama")
    ids = prompt(12, model.config.vocab_size)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    runs = []
    for wanted in (False, True):
        counters.clear()
        with attached(model, capacity=64, compile=wanted) as engine:
            slot = engine.alloc()
            first = engine.prefill(slot, ids, taps=(0, 1))
            then = engine.step({slot: _tree(first.emitted)}, taps=(1, 0))[slot]
            assert first.hidden is not None
            assert then.hidden is not None
            runs.append((first.hidden, then.hidden))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-5, atol=1e-5)
    assert not counters["graph_break"]
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


@compiles
def test_transformers_own_loop_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = supported("llama")
    ids = torch.tensor([prompt(6, model.config.vocab_size)])
    with torch.inference_mode():
        expected = model(ids).logits
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda *_, **__: pytest.fail("took the compiled layer"))
    fused = compiled.Fused(model, enabled=True)
    fused.attach()
    try:
        with torch.inference_mode():
            assert model(ids).logits.equal(expected)
    finally:
        fused.detach()


def test_keys_changed_after_the_cache_are_refused() -> None:
    deferred = compiled._Deferred()
    key, value = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4)
    stored, _ = deferred.update(key, value, 0)
    with pytest.raises(UsageError, check=wording):
        deferred(torch.zeros(1, 1, 1, 4), stored + 1, value, LayerAttention())
