"""Ancestor masks and the acceptance rule against oracles that walk one tree at a time in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models_tiny import attached, prompt, tiny_llama
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.ops import TorchOps, accept_path, ancestors
from specbench.engine.step import _behind

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


def padded(slots: list[Case], spare: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(tokens, parents, accept, next_token) [S, Q] with at least ``spare`` padding rows in each slot.

    Padding rows hold tokens that would match, so that only their flags keep them out.
    """
    width = max(len(case.tokens) for case in slots) + spare
    tokens, parents, accept, following = [], [], [], []
    for case in slots:
        rows = len(case.tokens)
        fill = width - rows
        tokens.append(case.tokens + [case.next_token[0]] * fill)
        parents.append([0, *case.parents[1:], *range(rows, width)])
        accept.append(case.accept + [False] * fill)
        following.append(case.next_token + [case.next_token[0]] * fill)
    return torch.tensor(tokens), torch.tensor(parents), torch.tensor(accept), torch.tensor(following)


@settings(max_examples=60, deadline=None)
@given(slots=st.lists(cases(), min_size=1, max_size=4), spare=st.integers(0, 5))
def test_ancestors_equal_a_walk_to_the_root(slots: list[Case], spare: int) -> None:
    _, parents, _, _ = padded(slots, spare)
    reach = ancestors(parents)
    rows = parents.shape[1]
    for slot, family in enumerate(parents.tolist()):
        for row in range(rows):
            expected, at = {row}, row
            while family[at] != at:
                at = family[at]
                expected.add(at)
            assert set(reach[slot, row].nonzero().flatten().tolist()) == expected


@settings(max_examples=60, deadline=None)
@given(slots=st.lists(cases(), min_size=1, max_size=4), spare=st.integers(0, 5))
def test_accept_path_equals_a_recursive_walk(slots: list[Case], spare: int) -> None:
    tokens, parents, accept, following = padded(slots, spare)
    path, bonus = accept_path(tokens, parents, accept, ancestors(parents), following)
    for slot, case in enumerate(slots):
        expected = oracle(case)
        assert path[slot].nonzero().flatten().tolist() == expected
        assert int(bonus[slot]) == case.next_token[expected[-1]]


def test_a_chain_of_the_largest_size_sees_all_before_it() -> None:
    rows = 512
    parents = (torch.arange(rows) - 1).clamp_min(0)[None]
    assert torch.equal(ancestors(parents)[0], torch.ones(rows, rows).tril().bool())


def test_the_deeper_of_two_equal_siblings_wins() -> None:
    # rows 1 and 2 are both right; only 2 has a right child
    tokens, parents = torch.tensor([[9, 4, 4, 7]]), torch.tensor([[0, 0, 0, 2]])
    following = torch.tensor([[4, 8, 7, 5]])
    path, bonus = accept_path(tokens, parents, torch.ones(1, 4).bool(), ancestors(parents), following)
    assert path[0].tolist() == [True, False, True, True]
    assert bonus.tolist() == [5]


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


def test_a_tree_behind_a_prompt_stands_by_its_depth_and_sees_all_of_the_prompt() -> None:
    # Two branches, of one row and of two, under the last of three tokens.
    ancestry = TorchOps().ancestry(torch.tensor([[0, 0, 0, 2]]))
    tokens, whole, lengths = _behind(torch.tensor([[7, 8]]), torch.tensor([[9, 1, 2, 3]]), ancestry, torch.tensor([5]))
    assert tokens.tolist() == [[7, 8, 9, 1, 2, 3]]
    assert whole.depth.tolist() == [[0, 1, 2, 3, 3, 4]]
    assert lengths.tolist() == [7]
    seen = ["100000", "110000", "111000", "111100", "111010", "111011"]
    assert ["".join(str(int(sees)) for sees in row) for row in whole.rows[0]] == seen
