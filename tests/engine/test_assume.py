"""Contexts that are assumed for timing: honest memory, and no harm to what comes after."""

from __future__ import annotations

from support.models import attached, autoregressive, prompt, tiny_llama

from specbench.decoding.tree import TokenTree

VOCAB = 97


def test_assumed_cells_hold_noise_everywhere_and_stay_when_assumed_again() -> None:
    with attached(tiny_llama(VOCAB), slots=2, capacity=700, max_rows=4) as engine:
        engine.alloc(), engine.alloc()
        engine.assume(1, 300)
        assert engine.length(1) == 300
        before = engine.cache.read(1, 300)
        for cells in before:
            assert cells.std() > 0.9
            assert not (cells == 0).all(-1).any()
        untouched = engine.cache.read(0, 300)
        assert all((cells[:, :, 32:] == 0).all() for cells in untouched)  # the check at load time wrote before
        engine.assume(1, 600)
        engine.assume(1, 100)
        assert engine.length(1) == 100
        for old, new in zip(before, engine.cache.read(1, 600), strict=True):
            assert (new[:, :, :300] == old).all()
            assert not (new == 0).all(-1).any()


def test_a_step_reads_the_assumed_context() -> None:
    """The same tree gives other results after other contexts, and the same results after the same context."""
    with attached(tiny_llama(VOCAB), capacity=200, max_rows=16) as engine:
        slot = engine.alloc()
        tree = TokenTree.chain(range(16), drafts_only=True)
        decided = []
        for length in (150, 150, 0):
            engine.assume(slot, length)
            decided.append(engine.step({slot: tree})[slot].next_tokens)
            assert engine.length(slot) == length + 1
    assert decided[0] == decided[1] != decided[2]


def test_a_slot_serves_as_before_once_it_is_freed() -> None:
    ids = prompt(20, VOCAB)
    with attached(tiny_llama(VOCAB), capacity=64, max_rows=4) as engine:
        expected = autoregressive(engine, ids, 12)
        slot = engine.alloc()
        engine.assume(slot, 64)
        engine.free(slot)
        assert autoregressive(engine, ids, 12) == expected
