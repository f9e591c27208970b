"""Ancestor bitmasks at the ends of words and programs, and of slots of more rows than a program holds."""

from __future__ import annotations

import pytest
import torch
from support.decoders import flat, forest
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine.kernels import bits as kernels
from specbench.engine.kernels.bits import reach_of, tree_bits, tree_bits_by_torch, widest_slot
from specbench.engine.layout import Layout
from specbench.engine.ops import ancestors
from specbench.engine.pack import Fields


def check(fields: Fields, found: tuple[Tensor, Tensor]) -> None:
    bits, depth = found
    layout, real = fields.layout, fields.layout.real
    reach = ancestors(fields.parents.long())
    assert bits.dtype == depth.dtype == torch.int32
    assert bits.shape == (len(reach), -(-widest_slot(layout) // 32))
    assert torch.equal(depth.long(), reach.sum(-1) - 1)
    assert torch.equal(reach_of(bits, layout)[real], reach[real])


def test_a_word_counts_from_the_slots_first_row(device: str) -> None:
    trees = {0: TokenTree.chain([0] * 40), 2: TokenTree([0] * 35, [-1, *[0] * 33, 33])}
    fields = flat(trees, 3, device, spare=2)
    bits, depth = tree_bits(fields.parents, fields.layout)
    assert bits.shape == (77, 3)
    assert bits[31, :1].tolist() == [-1]  # the sign bit is a bit like any other
    assert bits[33, :2].tolist() == [-1, 3]
    assert bits[40, :2].tolist() == [1, 0]
    assert bits[74, :2].tolist() == [1, 2 + 4]
    assert depth[-3:].tolist() == [2, 0, 0]


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 64, 65, 200])
def test_chains_of_every_word_boundary(rows: int, device: str) -> None:
    trees = {1: TokenTree.chain([0] * rows), 2: TokenTree.chain([0] * 33)}
    for known in (False, True):
        fields = flat(trees, 3, device, spare=1, known=known)
        check(fields, tree_bits(fields.parents, fields.layout))
        check(fields, tree_bits_by_torch(fields.parents, fields.layout))


def test_the_largest_tree(device: str) -> None:
    for trees in (forest(5, {0: 512}), {0: TokenTree.chain([0] * 512)}):
        fields = flat(trees, 1, device)
        check(fields, tree_bits(fields.parents, fields.layout))


@pytest.mark.parametrize("sizes", [{0: 600}, {0: 1100}, {0: 530, 1: 1, 3: 569}])
def test_trees_that_no_program_holds(sizes: dict[int, int], device: str) -> None:
    for known in (False, True):
        fields = flat(forest(3, sizes), 4, device, known=known)
        assert widest_slot(fields.layout) > kernels.MOST_ROWS
        check(fields, tree_bits_by_torch(fields.parents, fields.layout))


def test_a_host_that_knows_the_layout_makes_narrow_masks(device: str) -> None:
    even = Layout.even(7, 40, torch.device(device))
    parents = torch.arange(280, dtype=torch.int32, device=device)
    bits, _ = tree_bits(parents, even)
    assert bits.shape == (280, 2)
    assert widest_slot(even) == 40
    trees = {0: TokenTree.chain([0] * 5), 1: TokenTree.chain([0] * 5), 3: TokenTree.chain([0] * 9)}
    assert widest_slot(flat(trees, 4, device, spare=80, known=True).layout) == 9
    assert widest_slot(flat(trees, 4, device, spare=80).layout) == 99
