"""Sequences stepped together, entering and leaving at different times, say what each says alone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from support.decoders import hiding_tree, random_tree
from support.models import attached, autoregressive, prompt, supported, tiny_llama

from specbench.decoding.tree import COMPUTED, StepResult, TokenTree
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling

TOKENS = 20
SEQUENCES = [(1, 0), (30, 1), (9, 2), (17, 3), (2, 4), (23, 5), (12, 6)]  # prompt length, seed


SAMPLED, FILTERED = Sampling(temperature=1.2, seed=7), Sampling(temperature=0.9, top_k=20, top_p=0.9, seed=8)


# Plain attention, a window in some layers, experts; with and without padded rows.
@pytest.fixture(
    params=[
        ("llama", Sampling(), False), ("llama", SAMPLED, True), ("gemma3", FILTERED, False),
        ("gemma3", Sampling(), True), ("mixtral", SAMPLED, False), ("mixtral", FILTERED, True),
    ],
    ids=lambda param: f"{param[0]}-{'padded' if param[2] else 'as-is'}",
)  # fmt: skip
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    family, sampling, pad_rows = request.param
    with attached(supported(family), slots=4, capacity=60, max_rows=32, sampling=sampling, pad_rows=pad_rows) as engine:
        yield engine


def draft(rng: random.Random, out: list[int], alone: list[int], vocab: int) -> TokenTree:
    """Nothing, noise, or a tree that hides what comes next."""
    kind = rng.randrange(3)
    if kind == 0:
        return TokenTree.chain([out[-1]])
    if kind == 1:
        return random_tree(rng, out[-1], vocab, rng.randrange(2, 12))
    return hiding_tree(rng, out[-1], alone[len(out) : len(out) + rng.randrange(1, 5)], vocab, rng.randrange(12))


def test_slots_do_not_see_each_other(engine: Engine) -> None:
    rng = random.Random(3)
    vocab = engine.model.get_input_embeddings().num_embeddings
    prompts = [prompt(length, vocab, seed) for length, seed in SEQUENCES]
    alone = [autoregressive(engine, ids, TOKENS) for ids in prompts]
    waiting = list(range(len(prompts)))
    active: dict[int, int] = {}  # slot -> sequence
    out: dict[int, list[int]] = {}
    together = used = 0
    slots_used: set[int] = set()
    while waiting or active:
        while waiting and len(active) < 4 and (not active or rng.random() < 0.5):
            slot, who = engine.alloc(), waiting.pop(0)
            assert slot not in active
            active[slot] = who
            out[who] = list(engine.prefill(slot, prompts[who]).emitted)
            slots_used.add(slot)
            used += 1
        # now and then a sequence sits a forward out
        stepped = [slot for slot in active if rng.random() < 0.85] or list(active)
        together = max(together, len(stepped))
        trees = {slot: draft(rng, out[active[slot]], alone[active[slot]], vocab) for slot in stepped}
        for slot, result in engine.step(trees).items():
            who = active[slot]
            out[who] += result.emitted
            if len(out[who]) >= TOKENS:
                engine.free(slot)
                del active[slot]
    assert together == 4
    assert used > len(slots_used) == 4  # slots were reused
    assert [out[who][:TOKENS] for who in range(len(prompts))] == alone


def test_sampled_text_depends_on_the_seed_and_not_on_the_slot() -> None:
    model = supported("llama")
    vocab = model.get_input_embeddings().num_embeddings
    ids = prompt(9, vocab)
    with attached(model, slots=2, capacity=60, max_rows=32, sampling=Sampling(temperature=1.2, seed=1)) as engine:
        first = autoregressive(engine, ids, TOKENS)
        engine.alloc()
        assert autoregressive(engine, ids, TOKENS) == first  # now in the other slot
    with attached(model, capacity=60, max_rows=32, sampling=Sampling(temperature=1.2, seed=2)) as engine:
        assert autoregressive(engine, ids, TOKENS) != first


def test_each_slot_gets_its_own_top_scores_and_forced_tokens() -> None:
    model, trees = tiny_llama(97), {0: TokenTree.chain([5, 6, 7]), 2: TokenTree([8, 9, 10, 11], [-1, 0, 0, 1])}
    forced = {2: [9, 11, COMPUTED, 12]}

    def stepped(slots: tuple[int, ...]) -> dict[int, StepResult]:
        with attached(model, slots=3, capacity=40, max_rows=16) as engine:
            for slot in range(3):
                engine.prefill(engine.alloc(), prompt(5 + slot, 97))
            return engine.step({slot: trees[slot] for slot in slots}, top_k=2, forced=forced)

    together = stepped((2, 0))
    assert (together[2].path, together[2].emitted) == ([0, 1, 3], [9, 11, 12])
    for slot in trees:
        alone, found = stepped((slot,))[slot], together[slot]
        assert (found.next_tokens, found.emitted) == (alone.next_tokens, alone.emitted)
        assert found.top is not None
        assert alone.top is not None
        torch.testing.assert_close(found.top[0], alone.top[0], atol=1e-4, rtol=1e-4)
        assert torch.equal(found.top[1], alone.top[1])
