"""Packing: what is written and read for all trees together is what a plain loop over them does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.decoders import VOCAB, forest, sizes_of
from support.models import supported
from support.processes import lines_run
from support.wording import wording
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.tree import COMPUTED, BadTree, StepResult, TokenTree
from specbench.engine import graphs
from specbench.engine.block_verification import Verdict
from specbench.engine.engine import Engine
from specbench.engine.pack import Batch, Outcome, Shape, fill

SLOTS, FEATURES = 9, 5


def trees_of(seed: int) -> dict[int, TokenTree]:
    """Trees in some of the slots, not in their order; of some all rows may be emitted, and some are roots alone."""
    rng = random.Random(seed)
    trees = forest(seed, sizes_of(seed, SLOTS, 1 if seed % 5 == 0 else 7))
    for slot, tree in trees.items():
        if rng.random() < 0.5 or seed % 3 == 0:
            trees[slot] = replace(tree, accept=None)
        if rng.random() < 0.3:
            trees[slot] = TokenTree.chain(tuple(tree.tokens), drafts_only=rng.random() < 0.5)
    slots = [*trees]
    rng.shuffle(slots)
    return {slot: trees[slot] for slot in slots}


def forced_of(seed: int, trees: Mapping[int, TokenTree]) -> dict[int, list[int]] | None:
    """Next tokens of no, some or all slots; slots that are not stepped may be among them."""
    rng = random.Random(seed)
    share = (0.0, 0.5, 1.0)[seed % 3]
    found = {
        slot: [rng.choice((COMPUTED, 1, 2)) for _ in range(len(tree))]
        for slot, tree in trees.items()
        if rng.random() < share
    }
    return found | {SLOTS - 1: found.get(SLOTS - 1, [COMPUTED] * len(trees.get(SLOTS - 1, [0])))} if found else None


# ------------------------------------------------------------------ into the device


def plainly_filled(
    shape: Shape, trees: Mapping[int, TokenTree], lengths: Sequence[int], forced: Mapping[int, Sequence[int]]
) -> list[int]:
    """The input array, an entry at a time."""
    tokens, accept, slot_of = [0] * shape.rows, [0] * shape.rows, [shape.slots] * shape.rows
    parents, instead = list(range(shape.rows)), [COMPUTED] * shape.rows
    first, count = [0] * shape.slots, [0] * shape.slots
    at = 0
    for slot in sorted(trees):
        tree = trees[slot]
        first[slot], count[slot] = at, len(tree)
        for row in range(len(tree)):
            tokens[at + row] = tree.tokens[row]
            parents[at + row] = at + (tree.parents[row] if row else 0)
            accept[at + row] = 1 if tree.accept is None or tree.accept[row] else 0
            instead[at + row] = forced[slot][row] if slot in forced else COMPUTED
            slot_of[at + row] = slot
        at += len(tree)
    more, fields = -shape.rows % 4, [tokens, parents, accept, instead, slot_of]
    # Each field takes a multiple of 4 entries: what fills it up is padding, as far as rows are.
    fills = [
        [0] * more,
        [shape.rows + each for each in range(more)],
        [0] * more,
        [COMPUTED] * more,
        [shape.slots] * more,
    ]
    by_row = [entry for field, fill in zip(fields, fills, strict=True) for entry in (*field, *fill)]
    by_slot = [entry for field in (first, count, lengths) for entry in (*field, *[0] * (-shape.slots % 4))]
    return by_row + by_slot


@pytest.mark.parametrize("seed", range(60))
def test_what_is_written_is_what_a_loop_over_the_trees_writes(seed: int) -> None:
    trees, rng = trees_of(seed), random.Random(seed)
    forced, lengths = forced_of(seed, trees), [rng.randrange(50) for _ in range(SLOTS)]
    batch = Batch.of(trees)
    shape = Shape(batch.rows + rng.choice((0, 3)), SLOTS)
    packed = np.full(shape.width_in, -7, dtype=np.int32)
    for _ in range(2):  # nothing that is kept between two steps is written to
        fill(packed, shape, batch, lengths, forced)
        assert packed.tolist() == plainly_filled(shape, trees, lengths, forced or {})


@pytest.mark.parametrize("forced", [[5], [5, 5, 5]])
def test_a_wrong_number_of_forced_tokens_is_an_error_unless_it_is_one(forced: list[int]) -> None:
    trees = {0: TokenTree.chain([1, 2]), 1: TokenTree.chain([1, 2])}
    packed, batch = np.zeros(Shape(4, 2).width_in, dtype=np.int32), Batch.of(trees)
    if len(forced) == 1:  # applies to all rows
        fill(packed, Shape(4, 2), batch, [0, 0], {0: [5, 6], 1: forced})
        assert packed[12:16].tolist() == [5, 6, 5, 5]
    else:
        with pytest.raises(ValueError, check=wording):
            fill(packed, Shape(4, 2), batch, [0, 0], {0: [5, 6], 1: forced})


def test_a_token_that_no_32_bits_hold_is_an_error() -> None:
    with pytest.raises(BadTree, check=wording):
        fill(np.zeros(Shape(1, 1).width_in, dtype=np.int32), Shape(1, 1), Batch.of({0: TokenTree.chain([2**31])}), [0])


# ------------------------------------------------------------------ out of it


class Output:
    """A possible output of the device for some trees, random where that is valid."""

    def __init__(self, seed: int, trees: Mapping[int, TokenTree], top_k: int, spare: int) -> None:
        rng = random.Random(seed)
        self.rows, self.top_k = sum(map(len, trees.values())) + spare, top_k
        self.next = [rng.randrange(VOCAB) for _ in range(self.rows)]
        self.path, self.kept, self.bonus = [0] * self.rows, [0] * SLOTS, [0] * SLOTS
        at = 0
        for slot in sorted(trees):
            path = [0]
            while children := [row for row, parent in enumerate(trees[slot].parents) if parent == path[-1]]:
                if rng.random() < 0.2:
                    break
                path.append(rng.choice(children))
            self.path[at : at + len(path)] = path
            self.kept[slot], self.bonus[slot] = len(path), rng.randrange(VOCAB)
            at += len(trees[slot])
        numbers = np.random.default_rng(seed)
        self.ids = numbers.integers(0, VOCAB, (self.rows, top_k), dtype=np.int32)
        self.scores = numbers.standard_normal((self.rows, top_k), dtype=np.float32)
        self.hidden = torch.from_numpy(numbers.standard_normal((self.rows, FEATURES)))
        self.probabilities = torch.from_numpy(numbers.random((self.rows, VOCAB)))

    @property
    def outcome(self) -> Outcome:
        """The output array as it arrives on the host."""
        decided = [[*field, *[-9] * (-len(field) % 4)] for field in (self.next, self.path, self.kept, self.bonus)]
        parts: list[Any] = [*decided, self.ids.ravel(), self.scores.ravel().view(np.int32)]
        return Outcome(np.concatenate(parts).astype(np.int32), Shape(self.rows, SLOTS), self.top_k)


def plainly_read(
    output: Output, trees: Mapping[int, TokenTree], verdicts: Mapping[int, Verdict]
) -> dict[int, StepResult]:
    """Results slot by slot and row by row."""
    found, at = {}, 0
    for slot in sorted(trees):
        tree, path = trees[slot], [output.path[at + depth] for depth in range(output.kept[slot])]
        next_tokens, bonus = [output.next[at + row] for row in range(len(tree))], output.bonus[slot]
        if slot in verdicts:
            path, bonus = list(range(1 + verdicts[slot].accepted)), verdicts[slot].token
            for row in path[:-1]:
                next_tokens[row] = int(tree.tokens[row + 1])
            next_tokens[path[-1]] = bonus
        emitted = [int(tree.tokens[row]) for row in path if row] + [bonus]
        stop = at + len(tree)
        top = (torch.tensor(output.scores[at:stop]), torch.tensor(output.ids[at:stop], dtype=torch.int64))
        hidden = torch.stack([output.hidden[at + depth] for depth in range(len(path))])
        found[slot] = StepResult(emitted, path, next_tokens, top, hidden, output.probabilities[at:stop])
        at = stop
    return found


def equal(found: Tensor | None, expected: Tensor | None) -> bool:
    assert found is not None
    assert expected is not None
    return found.dtype == expected.dtype and found.equal(expected)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_is_what_a_loop_over_the_slots_reads(seed: int) -> None:
    rng, trees = random.Random(seed), trees_of(seed)
    output = Output(seed, trees, top_k := rng.choice((0, 1, 3)), rng.choice((0, 2)))
    chains = [slot for slot, tree in trees.items() if tree.is_chain]
    verdicts = {
        slot: Verdict(rng.randrange(len(trees[slot])), rng.randrange(VOCAB)) for slot in chains if rng.random() < 0.5
    }
    hidden, shares = rng.random() < 0.5, rng.random() < 0.5
    outcome = output.outcome
    found = outcome.results(
        Batch.of(trees), output.hidden if hidden else None, output.probabilities if shares else None, verdicts
    )
    outcome.packed[:] = -1  # the array is the next step's
    expected = plainly_read(output, trees, verdicts)
    assert [*found] == sorted(trees)
    for slot, result in found.items():
        words = result.emitted, result.path, result.next_tokens
        assert words == (expected[slot].emitted, expected[slot].path, expected[slot].next_tokens)
        assert all(type(each) is list and {type(word) for word in each} == {int} for each in words)
        assert (result.top is None, result.hidden is None, result.probabilities is None) == (
            not top_k, not hidden, not shares,
        )  # fmt: skip
        if result.top and (theirs := expected[slot].top):
            assert equal(result.top[0], theirs[0])
            assert equal(result.top[1], theirs[1])
        assert not hidden or equal(result.hidden, expected[slot].hidden)
        assert not shares or equal(result.probabilities, expected[slot].probabilities)


def test_features_of_a_prompt_stand_before_those_of_its_tree() -> None:
    trees = {3: TokenTree([1, 2, 0], [-1, 0, 1])}
    output = Output(0, trees, 0, 0)
    output.path, output.kept[3] = [0, 1, 0], 2
    before = torch.full((4, FEATURES), 9.0, dtype=torch.float64)
    found = output.outcome.results(Batch.of(trees), torch.cat([before, output.hidden]))[3].hidden
    assert equal(found, torch.cat([before, output.hidden[:2]]))


# ------------------------------------------------------------------ growth


def full(slots: int, rows: int) -> dict[int, TokenTree]:
    """A tree in every slot."""
    return forest(slots, dict.fromkeys(range(slots), rows))


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Engine]:
    """Makes an engine of so many slots, and rows of a tree, whose device does nothing after a first step."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    monkeypatch.setattr(graphs, "cuda_capture", lambda device: capture)

    def make(slots: int, rows: int) -> Engine:
        engine = Engine(supported("llama"), slots=slots, capacity=40, max_rows=max(2, rows), graphs=True)
        for _ in range(slots):
            engine.alloc()
        engine.step(full(slots, rows))
        engine.detach()
        return engine

    return make


@pytest.mark.parametrize("rows", [1, 8])
def test_a_sequence_more_is_few_lines_more(idle: Any, rows: int) -> None:
    """Lines of Python that a whole step runs, those of its loops each time; 54 where each slot was packed by itself."""

    def lines(slots: int) -> int:
        engine, trees = idle(slots, rows), full(slots, rows)
        return lines_run("specbench", lambda: engine.step(trees))

    assert (lines(36) - lines(4)) / 32 < 36


class Operations(TorchDispatchMode):
    """Counts operations of torch."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_sequence_more_is_no_operation_more() -> None:
    counts = []
    for slots in (2, SLOTS):
        trees = full(slots, 6)
        output = Output(0, trees, 3, 0)
        with Operations() as operations:
            output.outcome.results(Batch.of(trees), output.hidden, output.probabilities)
        counts.append(operations.count)
    assert counts[0] == counts[1]
