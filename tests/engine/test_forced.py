"""Chains inside a cached text say what a step that begins there says."""

from __future__ import annotations

import pytest
from support.models import SUPPORTED, attached, prompt, supported
from support.wording import wording

from specbench.decoding.tree import TokenTree
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.engine.teacher_forcing import Chain, next_tokens


def stepped(engine: Engine, chain: Chain) -> list[int]:
    """Next tokens of a chain from a step of its slot, rewound to the chain's start; the slot is restored."""
    slot, ids = chain.slot, texts(engine)[chain.slot]
    engine.rewind(slot, chain.start)
    found = engine.step({slot: TokenTree.chain(chain.tokens)})[slot].next_tokens
    engine.rewind(slot, chain.start)
    if ids[chain.start :]:
        engine.prefill(slot, ids[chain.start :])
    return found


def texts(engine: Engine) -> list[list[int]]:
    vocab = engine.model.config.vocab_size
    return [prompt(20, vocab), prompt(31, vocab, seed=1), prompt(9, vocab, seed=2)]


@pytest.mark.parametrize("family", SUPPORTED)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_say_what_steps_say(family: str, temperature: float) -> None:
    # Longer than the windows of the families that slide, and inside what is cached.
    with attached(supported(family), slots=3, capacity=40, sampling=Sampling(temperature, seed=3)) as engine:
        vocab = engine.model.config.vocab_size
        for ids in texts(engine):
            engine.prefill(engine.alloc(), ids)
        places = [(0, 1, 5), (0, 7, 1), (0, 20, 12), (2, 4, 3), (1, 30, 9), (1, 12, 2)]
        chains = [Chain(slot, start, prompt(rows, vocab, seed=start)) for slot, start, rows in places]
        expected = [stepped(engine, chain) for chain in chains]
        assert next_tokens(engine, chains) == expected
        assert next_tokens(engine, chains) == expected  # the first call has not changed the cache
        assert [next_tokens(engine, [chain])[0] for chain in chains] == expected
        # The results depend on the cache: without cached tokens they differ.
        assert next_tokens(engine, [Chain(chain.slot, 0, chain.tokens) for chain in chains]) != expected


def test_what_is_not_cached_cannot_be_seen() -> None:
    with attached(supported("llama"), slots=2, capacity=40) as engine:
        slot = engine.alloc()
        engine.prefill(slot, [1, 2, 3])
        with pytest.raises(ValueError, check=wording):
            next_tokens(engine, [Chain(slot, 4, [1])])
        with pytest.raises(ValueError, check=wording):
            next_tokens(engine, [Chain(1, 0, [1])])
        other = engine.alloc()
        engine.prefill(other, [1])
        with pytest.raises(ValueError, check=wording):
            next_tokens(engine, [Chain(slot, 1, [1]), Chain(other, 1, [1]), Chain(slot, 2, [1])])
