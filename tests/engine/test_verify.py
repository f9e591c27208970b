"""Ancestor masks and the acceptance rule against oracles that walk one tree at a time in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.models import attached, prompt, tiny_llama
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.layout import Group, Layout
from specbench.engine.ops import TorchOps, accept_path, ancestors
from specbench.engine.program import _prepend_prompt

VOCAB = 3  # few tokens, so that guesses are often right and siblings often equal


@dataclass(frozen=True)
class Case:
    """One slot: a tree and what the target says after each of its rows."""

    tokens: list[int]
    parents: list[int]
    accept: list[bool]
    next_token: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.integers(1, 24))
    tokens = st.lists(st.integers(0, VOCAB - 1), min_size=rows, max_size=rows)
    # near parents make deep trees, far ones make bushy ones
    parents = [-1] + [draw(st.integers(max(0, row - draw(st.integers(1, 24))), row - 1)) for row in range(1, rows)]
    accept = draw(st.lists(st.integers(0, 9).map(bool), min_size=rows, max_size=rows))
    return Case(draw(tokens), parents, accept, draw(tokens))


def oracle(case: Case) -> list[int]:
    """The deepest reachable path, walked from the root; among equally deep ends the lowest row's."""
    best = [0]

    def walk(path: list[int]) -> None:
        nonlocal best
        if (len(path), -path[-1]) > (len(best), -best[-1]):
            best = path
        for row, parent in enumerate(case.parents):
            if parent == path[-1] and case.accept[row] and case.tokens[row] == case.next_token[parent]:
                walk([*path, row])

    walk([0])
    return best


def laid(cases: list[Case], spare: int, holes: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Layout]:
    """(tokens, parents, accept, next_token) [N] and their layout, with ``spare`` padding rows at the end."""
    tokens: list[int] = []
    accept: list[bool] = []
    following: list[int] = []
    parents: list[int] = []
    slot_of: list[int] = []
    slots = 1 + (holes + 1) * (len(cases) - 1)
    first, count = [0] * slots, [0] * slots
    for at, case in enumerate(cases):
        slot = at * (holes + 1)
        first[slot], count[slot] = len(tokens), len(case.tokens)
        parents += [len(tokens) + max(0, parent) for parent in case.parents]
        slot_of += [slot] * len(case.tokens)
        tokens, accept, following = tokens + case.tokens, accept + case.accept, following + case.next_token
    for _ in range(spare):
        parents.append(len(tokens))
        slot_of.append(slots)
        tokens.append(following[0])
        accept.append(False)
        following.append(following[0])
    fields = [torch.tensor(field) for field in (tokens, parents, accept, following)]
    of_row, begins, rows = (torch.tensor(field, dtype=torch.int32) for field in (slot_of, first, count))
    return fields[0], fields[1], fields[2], fields[3], Layout(of_row, begins, rows)


several = given(slots=st.lists(cases(), min_size=1, max_size=4), spare=st.integers(0, 5), holes=st.integers(0, 2))


@settings(max_examples=60, deadline=None)
@several
def test_ancestors_equal_a_walk_to_the_root(slots: list[Case], spare: int, holes: int) -> None:
    _, parents, _, _, _ = laid(slots, spare, holes)
    reach = ancestors(parents)
    family = parents.tolist()
    for row in range(len(family)):
        expected, at = {row}, row
        while family[at] != at:
            at = family[at]
            expected.add(at)
        assert set(reach[row].nonzero().flatten().tolist()) == expected


@settings(max_examples=60, deadline=None)
@example(slots=[Case([1], [-1], [True], [2])], spare=0, holes=0)  # AR
@several
def test_acceptance_equals_a_recursive_walk(slots: list[Case], spare: int, holes: int) -> None:
    tokens, parents, accept, following, layout = laid(slots, spare, holes)
    ops = TorchOps()
    ancestry = ops.ancestry(parents, layout)
    taken, _ = accept_path(tokens, parents, accept, ancestry.rows, following, layout)
    count, path, bonus = ops.accept(tokens, parents, accept, ancestry, following, layout)
    left = set(range(len(count)))
    for at, case in enumerate(slots):
        slot = at * (holes + 1)
        left.remove(slot)
        expected, first, rows = oracle(case), int(layout.first[slot]), len(case.tokens)
        assert taken[first : first + rows].nonzero().flatten().tolist() == expected
        assert int(bonus[slot]) == case.next_token[expected[-1]]
        assert int(count[slot]) == len(expected)
        assert path[first : first + rows].tolist() == [*expected, *range(len(expected), rows)]
    assert not taken[len(taken) - spare :].any()
    assert not any(count[slot] for slot in left)


def test_of_equally_good_tokens_who_looks_at_the_best_gets_the_same_as_who_does_not() -> None:
    model = tiny_llama(97, tie_word_embeddings=False)
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head[:] = head[torch.arange(97) % 5]  # nineteen tokens or more tie for every place
    ids = prompt(12, 97)
    with attached(model, capacity=16, max_rows=12) as engine:
        found = [engine.prefill(engine.alloc(), ids[:1], TokenTree.chain(ids), top_k=0).next_tokens]
        engine.free(0)
        for top_k in (1, 3, 10):
            result = engine.prefill(engine.alloc(), ids[:1], TokenTree.chain(ids), top_k=top_k)
            assert result.top is not None
            found.append(result.next_tokens)
            engine.free(0)
    assert max(found[0]) < 5, "the lowest id of equal ones"
    assert found[1:] == found[:1] * 3


def test_a_tree_after_a_prompt_stands_by_its_depth_and_sees_all_of_the_prompt() -> None:
    # Two branches, of one row and of two, under the last of three tokens, in the second of three slots.
    tokens, parents, _, _, layout = laid([Case([9, 1, 2, 3], [-1, 0, 0, 2], [True] * 4, [0] * 4)], 0)
    layout = replace(
        layout,
        slot=torch.ones(4, dtype=torch.int32),
        first=torch.zeros(3, dtype=torch.int32),
        count=torch.tensor([0, 4, 0], dtype=torch.int32),
        groups=(Group(slice(1, 2), slice(0, 4), 9),),
    )
    ancestry = TorchOps().ancestry(parents, layout)
    found, above, longer, new_layout = _prepend_prompt(torch.tensor([7, 8]), tokens, parents, ancestry, layout)
    assert above.tolist() == [0, 0, 1, 2, 2, 4]
    assert found.tolist() == [7, 8, 9, 1, 2, 3]
    assert longer.depth.tolist() == [0, 1, 2, 3, 3, 4]
    assert (new_layout.slot.tolist(), new_layout.count.tolist()) == ([1] * 6, [0, 6, 0])
    assert new_layout.groups == (Group(slice(1, 2), slice(0, 6), 11),)
    seen = ["100000", "110000", "111000", "111100", "111010", "111011"]
    assert ["".join(str(int(sees)) for sees in row) for row in longer.rows] == seen
