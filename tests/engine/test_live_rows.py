"""Uneven trees stepped together: the layers see their rows and no padding, and every result is as with padding."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from models_tiny import attached, prompt, supported
from random_trees import random_tree

from specbench.decoding.tree import StepResult, TokenTree
from specbench.engine.engine import Engine
from specbench.engine.pack import Live
from specbench.engine.sampler import Sampling

ROWS = (1, 12, 3, 7)


def uneven(engine: Engine, roots: dict[int, int]) -> dict[int, TokenTree]:
    vocab = engine.model.get_input_embeddings().num_embeddings
    rng = random.Random(4)
    return {slot: random_tree(rng, root, vocab, ROWS[slot]) for slot, root in roots.items()}


def stepped(family: str, pad_rows: bool, sampling: Sampling, **asked: Any) -> tuple[dict[int, StepResult], list[int]]:
    """Results of a step of four uneven trees, then of three of them; and how many rows the first layer was given."""
    seen: list[int] = []
    with attached(supported(family), slots=4, capacity=60, max_rows=32, sampling=sampling, pad_rows=pad_rows) as engine:
        vocab = engine.model.get_input_embeddings().num_embeddings
        found: dict[int, StepResult] = {}
        roots = {engine.alloc(): 0 for _ in ROWS}
        for slot in roots:
            roots[slot] = engine.prefill(slot, prompt(5 + 4 * slot, vocab, slot)).emitted[-1]
        first = engine.model.get_decoder().layers[0]
        hook = first.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[0] * args[0].shape[1]))
        try:
            for slot, result in engine.step(uneven(engine, roots), **asked).items():
                found[slot] = result
                roots[slot] = result.emitted[-1]
            del roots[1]
            for slot, result in engine.step(uneven(engine, roots), **asked).items():
                found[10 + slot] = result
        finally:
            hook.remove()
    return found, seen


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.1, seed=5)], ids=["greedy", "sampled"])
def test_results_are_those_of_padded_rows(family: str, sampling: Sampling) -> None:
    padded, every = stepped(family, True, sampling, top_k=3, taps=(0, 1))
    live, some = stepped(family, False, sampling, top_k=3, taps=(0, 1))
    assert some == [sum(ROWS), sum(ROWS) - ROWS[1]]
    assert every == [4 * 16, 4 * 8]
    assert padded.keys() == live.keys()
    for slot, here in live.items():
        there = padded[slot]
        assert (here.emitted, here.path, here.next_tokens) == (there.emitted, there.path, there.next_tokens)
        assert here.top is not None
        assert there.top is not None
        assert here.hidden is not None
        assert there.hidden is not None
        torch.testing.assert_close(here.top[0], there.top[0], atol=1e-4, rtol=1e-4)
        assert here.top[1].equal(there.top[1])
        torch.testing.assert_close(here.hidden, there.hidden, atol=1e-4, rtol=1e-4)


def test_a_little_padding_is_left_alone() -> None:
    here = torch.device("cpu")
    assert Live.of([TokenTree.chain([1, 2]), TokenTree.chain([3, 4])], 2, here) is None
    assert Live.of([TokenTree.chain([0] * 8), TokenTree.chain([1])], 8, here) is None  # seven rows of padding
    live = Live.of([TokenTree.chain([0] * 9), TokenTree.chain([1])], 9, here)
    assert live is not None
    assert live.index.tolist() == [*range(9), 9]
    assert Live.of([TokenTree.chain([1]), *[None] * 7], 1, here) is None
    assert Live.of([TokenTree.chain([1]), *[None] * 8], 1, here) is not None


def test_rows_come_back_to_their_places() -> None:
    live = Live(torch.tensor([0, 6, 7, 8]), slots=3, rows=3)
    rows = torch.arange(1.0, 19.0).reshape(3, 3, 2)
    packed = live.pack(rows)
    assert packed.tolist() == [[[1, 2], [13, 14], [15, 16], [17, 18]]]
    back = live.unpack(packed)
    assert back[0, 0].tolist() == [1, 2]
    assert back[2].equal(rows[2])
    assert not back[0, 1:].any()
    assert not back[1].any()
    heads = rows.unflatten(2, (1, 2)).transpose(1, 2)  # [S, heads, Q, size]
    assert live.unpack_heads(live.pack(heads.transpose(1, 2)).transpose(1, 2))[2].equal(heads[2])
