"""Autoregressive decoding through the engine is transformers' own greedy ``generate``, on every supported family."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from support.decoders import hiding_tree, random_tree
from support.models import (
    RECURRENT,
    SHARING,
    SUPPORTED,
    WINDOW,
    attached,
    autoregressive,
    decode,
    prompt,
    supported,
)

from specbench.decoding.tree import TokenTree
from specbench.engine import stepper
from specbench.engine.engine import Engine

CHUNK = 16
LENGTHS = (1, 2, 11, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
TOKENS = 2 * WINDOW


@dataclass(frozen=True)
class Family:
    """A model with an engine, and what its own ``generate`` says after prompts of :data:`LENGTHS`."""

    engine: Engine
    vocab: int
    expected: dict[int, list[int]]


def generate(model: Any, ids: list[int]) -> list[int]:
    """transformers' greedy output after ``ids``, in the model's own attention."""
    asked = torch.tensor([ids])
    output = model.generate(
        asked, attention_mask=torch.ones_like(asked), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
    )
    return output[0, len(ids) :].tolist()


@cache
def expected(name: str) -> tuple[Any, dict[int, list[int]]]:
    model = supported(name)
    vocab = model.get_input_embeddings().num_embeddings
    return model, {length: generate(model, prompt(length, vocab)) for length in LENGTHS}


# Rows as they are for every other family, padded ones for the rest; the other way round is slow.
@pytest.fixture(
    params=[
        pytest.param((name, padded), id=f"{name}-{how}", marks=[pytest.mark.slow] * ((at + padded) % 2))
        for at, name in enumerate([*SUPPORTED, *SHARING, *RECURRENT])
        for padded, how in ((False, "as-is"), (True, "padded"))
    ]
)
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    name, padded = request.param
    model, outputs = expected(name)
    monkeypatch.setattr(stepper, "PREFILL_CHUNK", CHUNK)
    with attached(model, capacity=max(LENGTHS) + TOKENS, max_rows=64, pad_rows=padded) as engine:
        yield Family(engine, model.get_input_embeddings().num_embeddings, outputs)


def test_one_row_per_forward_equals_generate(family: Family) -> None:
    for length, output in family.expected.items():
        assert autoregressive(family.engine, prompt(length, family.vocab), TOKENS) == output


def test_trees_that_hide_the_continuation_equal_generate(family: Family) -> None:
    rng = random.Random(0)
    for length, output in family.expected.items():
        forwards = 0

        def draft(out: list[int], output: list[int] = output) -> TokenTree:
            nonlocal forwards
            forwards += 1
            hidden = output[len(out) : len(out) + rng.randrange(1, WINDOW + 5)]  # deeper than a window at times
            return hiding_tree(rng, out[-1], hidden, family.vocab, rng.randrange(20))

        assert decode(family.engine, prompt(length, family.vocab), TOKENS, draft) == output
        assert forwards < TOKENS - 1  # the hidden paths were taken


def test_trees_of_noise_equal_generate(family: Family) -> None:
    rng = random.Random(1)
    for length, output in family.expected.items():
        ids = prompt(length, family.vocab)
        noise = decode(family.engine, ids, TOKENS, lambda out: random_tree(rng, out[-1], family.vocab, 12))
        assert noise == output


def test_guesses_sent_with_the_prompt_change_nothing(family: Family) -> None:
    engine, rng = family.engine, random.Random(2)
    for length, output in family.expected.items():
        ids = prompt(length, family.vocab)
        slot = engine.alloc()
        silent = TokenTree.chain([ids[-1], *output[:3]], drafts_only=True)
        result = engine.prefill(slot, ids, silent)
        assert result.emitted == output[:1]
        assert result.next_tokens == output[:4]
        engine.free(slot)

        slot = engine.alloc()
        out = engine.prefill(slot, ids, hiding_tree(rng, ids[-1], output[:4], family.vocab, 10)).emitted
        assert len(out) >= 5
        while len(out) < TOKENS:
            out = out + engine.step({slot: TokenTree.chain([out[-1]])})[slot].emitted
        assert out[:TOKENS] == output
        engine.free(slot)


def test_a_prompt_fed_in_two_parts_equals_the_whole(family: Family) -> None:
    engine, output = family.engine, family.expected[LENGTHS[-1]]
    ids = prompt(LENGTHS[-1], family.vocab)
    slot = engine.alloc()
    engine.prefill(slot, ids[:7])
    assert engine.prefill(slot, ids[7:]).emitted == output[:1]
    engine.free(slot)


def test_top_scores_are_the_models_logits(family: Family) -> None:
    engine, ids = family.engine, prompt(LENGTHS[2], family.vocab)
    slot = engine.alloc()
    top = engine.prefill(slot, ids, top_k=3).top
    engine.free(slot)
    engine.detach()
    with torch.inference_mode():
        own = engine.model(torch.tensor([ids])).logits[0, -1].topk(3)
    engine.attach()
    assert top is not None
    assert top[1][0].tolist() == own.indices.tolist()
    torch.testing.assert_close(top[0][0], own.values, rtol=1e-4, atol=1e-4)
