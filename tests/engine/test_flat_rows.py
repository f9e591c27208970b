"""Uneven trees in any slots: the layers see the rows that exist, and every result is that of a step of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.decoders import flat, forest, hiding_tree, random_tree
from support.models import attached, autoregressive, prompt, supported

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.decoding.tree import StepResult, TokenTree
from specbench.engine import graphs as graphs_
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling

ROWS = (1, 12, 3, 7)
TOKENS = 10


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
    exact, some = stepped(family, False, sampling, top_k=3, taps=(0, 1))
    assert some == [sum(ROWS), sum(ROWS) - ROWS[1]]
    assert every == [32, 16]  # the next buckets
    assert padded.keys() == exact.keys()
    for slot, here in exact.items():
        there = padded[slot]
        assert (here.emitted, here.path, here.next_tokens) == (there.emitted, there.path, there.next_tokens)
        assert here.top is not None
        assert there.top is not None
        assert here.hidden is not None
        assert there.hidden is not None
        torch.testing.assert_close(here.top[0], there.top[0], atol=1e-4, rtol=1e-4)
        assert here.top[1].equal(there.top[1])
        torch.testing.assert_close(here.hidden, there.hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    ("seed", "slots"),
    [(0, 1), (1, 3), (2, 8), (3, 13), *(pytest.param(seed, 64, marks=pytest.mark.slow) for seed in range(4))],
)
def test_any_trees_in_any_slots_are_as_alone_and_as_ar(
    seed: int, slots: int, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences come and go, so that slots have holes; AR's own answer is hidden in random trees."""
    monkeypatch.setattr(graphs_, "cuda_capture", recorded_capture)
    rng, model = random.Random(seed), supported("llama")
    vocab = model.get_input_embeddings().num_embeddings
    texts = [prompt(rng.randint(1, 20), vocab, number) for number in range(slots + 4)]
    with attached(model, capacity=50, max_rows=2) as engine:
        answers = [autoregressive(engine, text, TOKENS) for text in texts]
    running: dict[int, tuple[int, list[int]]] = {}  # slot -> text and what it has emitted
    todo, done = list(range(len(texts))), {}
    rows: list[tuple[int, int]] = []
    with attached(model, slots=slots, capacity=50, max_rows=24, graphs=graphs) as engine:
        first = engine.model.get_decoder().layers[0]
        hook = first.register_forward_pre_hook(lambda _, args: rows.append((args[0].shape[1], sum(sizes))))
        sizes: list[int] = []
        while todo or running:
            while todo and len(running) < slots and (not running or rng.random() < 0.7):
                slot, number = engine.alloc(), todo.pop()
                sizes = [len(texts[number])]
                running[slot] = number, list(engine.prefill(slot, texts[number]).emitted)
            stepped = [slot for slot in running if rng.random() < 0.8] or [*running]
            trees = {}
            for slot in rng.sample(stepped, len(stepped)):
                number, out = running[slot]
                hidden = answers[number][len(out) : len(out) + rng.randrange(5)]
                trees[slot] = hiding_tree(rng, out[-1], hidden, vocab, rng.randrange(len(hidden), 20))
            sizes = [len(tree) for tree in trees.values()]
            for slot, result in engine.step(trees).items():
                number, out = running[slot]
                out += result.emitted
                if len(out) >= TOKENS:
                    done[number] = out[:TOKENS]
                    del running[slot]
                    engine.free(slot)
        hook.remove()
    assert [done[number] for number in range(len(texts))] == answers
    if graphs:  # a replay calls no layer; a capture does, on the bucket
        assert {seen for seen, _ in rows} <= {*ROW_BUCKETS, *map(len, texts)}
    else:
        assert all(seen == asked for seen, asked in rows)


def test_nothing_is_left_of_the_step_that_an_array_held_before() -> None:
    layout = flat(forest(0, {0: 2, 2: 1}), 4, "cpu", spare=2).layout  # in an array that held another step
    assert layout.count.tolist() == [2, 0, 1, 0]
    assert layout.first.tolist() == [0, 0, 2, 0]
    assert layout.slot.tolist() == [0, 0, 2, 4, 4]
