"""Room for trees: what a step takes, what is refused for it, and that a tree of thousands of rows is stepped as any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.models import attached, autoregressive, prompt, supported, tiny_llama
from support.wording import wording

from specbench.decoding import TokenTree
from specbench.engine import Engine, memory
from specbench.engine.buckets import scratch_cells
from specbench.engine.memory_budget import TreesTooLarge, Widths, assert_trees_fit, step_memory

GIB = 2**30
SMOLLM2 = Widths(hidden=576, inner=4608, vocabulary=49152, token_bytes=4 * 30 * 3 * 128, value_bytes=4)


def branching(root: int, answer: list[int], rows: int, vocab: int) -> TokenTree:
    """The right tokens as a chain; below each of them wrong chains of four, so many as make the rows."""
    tokens, parents, last = [root], [-1], 0
    for token in answer:
        for at in range((rows - len(answer)) // (4 * len(answer))):
            under = last
            for step in range(4):
                tokens.append((token + 1 + at + step) % vocab)
                parents.append(under)
                under = len(tokens) - 1
        tokens.append(token)
        parents.append(last)
        last = len(tokens) - 1
    return TokenTree(tokens, parents)


@pytest.mark.parametrize("native", [True, False], ids=["own layers", "torch"])
def test_a_tree_of_over_5000_rows_is_stepped_as_any(native: bool) -> None:
    model, ids = tiny_llama(97, hidden_size=16, intermediate_size=16, num_hidden_layers=1), prompt(9, 97)
    with attached(model, capacity=40, max_rows=5400, native=native) as engine:
        answer = autoregressive(engine, ids, 8)
        slot = engine.alloc()
        root = engine.prefill(slot, ids).emitted[-1]
        tree = branching(root, answer[1:6], 5200, 97)
        assert len(tree) > 5100
        result = engine.step({slot: tree})[slot]
        following = engine.step({slot: TokenTree.chain([answer[6]])})[slot].emitted
    assert result.emitted == answer[1:7]
    assert following == answer[7:8]


def test_the_parts_of_a_steps_memory() -> None:
    one, wide = step_memory(SMOLLM2, 1, 500), step_memory(SMOLLM2, 4337, 500)
    assert wide.cache == (500 + scratch_cells(4337)) * SMOLLM2.token_bytes
    assert one.cache == (500 + scratch_cells(1)) * SMOLLM2.token_bytes
    cells = 500 + scratch_cells(4337)
    masks, activations, logits = 4337 * (14 * 4337 + 5 * cells), 4337 * 4 * (4 * 576 + 4608), 512 * 49152 * 12
    assert wide.step == masks + activations + logits
    assert wide.total == wide.cache + wide.step
    # The masks of sequences stepped together are of all rows by all rows; caches are each one's own.
    two = step_memory(SMOLLM2, 4337, 500, 2)
    assert two.cache == 2 * wide.cache
    assert two.step == 14 * 8674**2 + 8674 * 5 * cells + 2 * activations + logits
    # Of a model that is not known yet only the masks are. Kernels take a bit for two rows, and make it twice; of more
    # rows than one of them holds, acceptance goes by matrices.
    assert step_memory(None, 4337, 500).step == 4337 * (14 * 4337 + 3 * cells)
    assert step_memory(None, 4337, 500, dense=False).step == 14 * 4337**2
    assert step_memory(None, 512, 500, 4, dense=False).step == 4 * 512 * 512 / 4


def test_what_does_not_fit_is_refused_with_the_bytes() -> None:
    needed = step_memory(SMOLLM2, 4337, 500).total
    assert_trees_fit(SMOLLM2, 4337, 500, 1, needed)
    assert_trees_fit(SMOLLM2, 4337, 500, 1, None)
    with pytest.raises(TreesTooLarge) as caught:
        assert_trees_fit(SMOLLM2, 4337, 500, 1, 0.5 * GIB)
    assert wording(caught.value)
    # Where a single row has no room either, it is not the tree that is too large.
    assert_trees_fit(SMOLLM2, 4337, 1 << 30, 1, 0.5 * GIB)


def test_an_engine_refuses_trees_that_no_machine_has_memory_for() -> None:
    model = supported("llama")
    native = model.config._attn_implementation
    with pytest.raises(TreesTooLarge, check=wording):
        Engine(model, capacity=40, slots=2, max_rows=10_000_000)
    assert model.config._attn_implementation == native


def test_memory_that_ends_in_a_step_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with attached(supported("llama"), capacity=40, max_rows=8) as engine:
        slot = engine.alloc()
        engine.prefill(slot, [1, 2, 3])
        monkeypatch.setattr(engine._eager.program, "run", no_memory)
        with pytest.raises(TreesTooLarge, check=wording):
            engine.step({slot: TokenTree.chain([5, 6])})
        monkeypatch.setattr(engine._eager.program, "run", broken)
        with pytest.raises(RuntimeError, check=wording):
            engine.step({slot: TokenTree.chain([5, 6])})


def status(field: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here")
@pytest.mark.parametrize("native", [True, False], ids=["own layers", "torch"])
def test_what_a_step_takes_is_about_what_was_said(native: bool) -> None:
    model = tiny_llama(2000, hidden_size=64, intermediate_size=256, num_hidden_layers=1)
    with attached(model, capacity=64, max_rows=4337, native=native) as engine:
        slot = engine.alloc()
        engine.prefill(slot, [1, 2, 3])
        engine.step({slot: TokenTree.chain([1, 2])})
        engine.cache.scatter_noise(slot, 0, engine.cache.capacity)  # its memory is taken when it is first written
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        engine.step({slot: branching(1, [2, 3, 4], 4330, 2000)})
        grown = status("VmHWM") - before
        estimated = step_memory(memory.widths(model, engine.cache.shapes), 4337, 64).step
    assert 0.3 * estimated <= grown <= 1.1 * estimated
