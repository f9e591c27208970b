"""What a user can ask for and not get is a one-line UsageError; what a caller does wrong is a ValueError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.models import attached, autoregressive, prompt, tiny_llama
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.decoding.tree import TokenTree
from specbench.engine import stepper
from specbench.engine.engine import Engine

VOCAB = 97
CAPACITY = 40


@pytest.fixture(params=[False, True], ids=["as-is", "padded"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with attached(tiny_llama(VOCAB), slots=3, capacity=CAPACITY, max_rows=8, pad_rows=request.param) as engine:
        yield engine


def one_line(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, check=wording) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_empty_prompt(engine: Engine) -> None:
    slot = engine.alloc()
    one_line(lambda: engine.prefill(slot, []), "the prompt is empty")


def test_a_prompt_longer_than_the_cache(engine: Engine) -> None:
    slot = engine.alloc()
    one_line(lambda: engine.prefill(slot, [1] * (CAPACITY + 1)), "prompt of 41 tokens does not fit a cache of 40")
    engine.prefill(slot, [1] * 30)
    one_line(lambda: engine.prefill(slot, [1] * 11), "prompt of 41 tokens")


def test_a_sequence_at_its_capacity(engine: Engine) -> None:
    slot = engine.alloc()
    token = engine.prefill(slot, prompt(CAPACITY - 1, VOCAB)).emitted[-1]
    token = engine.step({slot: TokenTree.chain([token])})[slot].emitted[-1]  # token 40 goes in, 41 comes out
    assert engine.length(slot) == CAPACITY
    one_line(lambda: engine.step({slot: TokenTree.chain([token])}), "end of its cache of 40 tokens")


def test_last_trees_of_idle_neighbours_fit_beyond_the_capacity() -> None:
    ids, rows = prompt(CAPACITY - 1, VOCAB), 32
    with attached(tiny_llama(VOCAB), capacity=CAPACITY + rows, max_rows=1) as engine:
        truth = autoregressive(engine, ids, rows + 1)
    with attached(tiny_llama(VOCAB), slots=3, capacity=CAPACITY, max_rows=rows) as engine:
        for _ in range(engine.slots):
            engine.prefill(engine.alloc(), ids)
        for stepped in ([1], [0, 2]):  # slot 1 is over its capacity when it sits between the other two
            for result in engine.step(dict.fromkeys(stepped, TokenTree.chain(truth[:rows]))).values():
                assert result.emitted == truth[1:]
        assert {engine.length(slot) for slot in range(engine.slots)} == {CAPACITY - 1 + rows}


def test_a_tree_larger_than_the_engine_was_made_for(engine: Engine) -> None:
    slot = engine.alloc()
    tree = TokenTree.chain([1] * 9)
    one_line(lambda: engine.prefill(slot, [1], tree), "tree of 9 rows exceeds the row limit of 8")
    engine.prefill(slot, [1])
    one_line(lambda: engine.step({slot: tree}), "tree of 9 rows exceeds the row limit of 8")


def test_a_cache_that_does_not_fit() -> None:
    model = tiny_llama(VOCAB)
    native = model.config._attn_implementation
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(model, slots=4, capacity=10**12, max_rows=8)
    assert model.config._attn_implementation == native


def test_misuse_by_a_caller(engine: Engine) -> None:
    with pytest.raises(ValueError, check=wording):
        engine.prefill(1, [1])
    with pytest.raises(ValueError, check=wording):
        engine.step({1: TokenTree.chain([1])})
    slot = engine.alloc()
    with pytest.raises(ValueError, check=wording):
        engine.prefill(slot, [1, 2], TokenTree.chain([7, 8]))
    while engine.slots > slot + 1:
        slot = engine.alloc()
    with pytest.raises(ValueError, check=wording):
        engine.alloc()
    with pytest.raises(ValueError, check=wording):
        Engine(engine.model, capacity=CAPACITY)


def test_close_restores_the_models_own_attention() -> None:
    model = tiny_llama(VOCAB)
    native = model.config._attn_implementation
    for _ in range(2):  # and leaves it ready for the next engine
        with attached(model, capacity=CAPACITY, max_rows=8) as engine:
            assert model.config._attn_implementation != native
            autoregressive(engine, [1, 2, 3], 4)
        assert model.config._attn_implementation == native


def test_a_prompt_longer_than_a_chunk_with_a_tree_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, answers = prompt(30, VOCAB), []
    for chunk in (4, 1000):
        monkeypatch.setattr(stepper, "PREFILL_CHUNK", chunk)
        with attached(tiny_llama(VOCAB), capacity=CAPACITY, max_rows=8, pad_rows=True) as engine:
            answers.append(engine.prefill(engine.alloc(), ids, TokenTree.chain([ids[-1], *range(7)])).next_tokens)
    assert answers[0] == answers[1]
