"""The acceptance kernel chooses the path and the token of ``ops.accept_path``, in every order of a tree's rows."""

from __future__ import annotations

import pytest
import torch
from support.decoders import flat, following, forest
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.kernels.accept import accept_paths
from specbench.engine.kernels.bits import tree_bits
from specbench.engine.ops import TorchOps
from specbench.engine.pack import Fields


def check(fields: Fields, next_token: Tensor) -> list[int]:
    """Compares every output with the oracle's; returns the counts."""
    layout, inputs = fields.layout, (fields.tokens, fields.parents, fields.accept)
    oracle = TorchOps()
    expected = oracle.accept(*inputs, oracle.ancestry(fields.parents, layout), next_token, layout)
    count, path, bonus = accept_paths(*inputs, *tree_bits(fields.parents, layout), next_token, layout)
    used = count > 0
    assert torch.equal(count.long(), expected[0])
    assert torch.equal(path.long(), expected[1])
    assert torch.equal(bonus[used], expected[2][used])
    counts: list[int] = count.tolist()
    return counts


def test_the_largest_tree(device: str) -> None:
    fields = flat(forest(8, {0: 505}), 1, device, spare=7)
    next_token = following(1, fields)
    row = int(tree_bits(fields.parents, fields.layout)[1].argmax())  # the deepest row, with duplicates next to its path
    while row:
        above = int(fields.parents[row])
        next_token[above], fields.accept[row] = fields.tokens[row], 1
        row = above
    assert check(fields, next_token)[0] > 5


def test_a_chain_of_right_guesses_is_taken_whole(device: str) -> None:
    fields = flat({0: TokenTree.chain(range(512))}, 1, device)
    assert check(fields, torch.arange(1, 513, dtype=torch.int32, device=device)) == [512]


@pytest.mark.parametrize("rows", [2, 32, 33, 64, 65])
def test_a_wrong_guess_at_the_end_of_a_word_is_not_taken(rows: int, device: str) -> None:
    fields = flat({0: TokenTree.chain([7]), 2: TokenTree.chain(range(rows))}, 3, device)
    next_token = torch.tensor([0, *range(1, rows - 1), -1, 5], dtype=torch.int32, device=device)
    assert check(fields, next_token) == [1, 0, rows - 1]


def test_slots_between_others_and_slots_without_rows(device: str) -> None:
    trees = {1: TokenTree.chain([5, 6, 7]), 2: TokenTree.chain([1]), 4: TokenTree.chain([5, 6, 9])}
    fields = flat(trees, 6, device, spare=4)
    next_token = torch.tensor([6, 7, 8, 4, 6, 7, 3, 0, 0, 0, 0], dtype=torch.int32, device=device)
    assert check(fields, next_token) == [0, 3, 1, 0, 2, 0]
