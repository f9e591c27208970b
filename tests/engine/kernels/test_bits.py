"""Ancestor bitmasks equal the dense mask of ``ops.ancestors``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.kernels.accept import tree_bits
from specbench.engine.ops import ancestors


def packed(reach: Tensor) -> Tensor:
    """bool [S, Q, Q] as int32 [S, Q, W]."""
    slots, rows, _ = reach.shape
    words = -(-rows // 32)
    wide = pad(reach, (0, words * 32 - rows)).view(slots, rows, words, 32).long()
    return (wide << torch.arange(32)).sum(-1).to(torch.int32)


def check(parents: Tensor, device: str) -> None:
    reach = ancestors(parents.long())
    bits, depth = tree_bits(parents.to(device))
    assert bits.dtype == depth.dtype == torch.int32
    assert torch.equal(bits.cpu(), packed(reach))
    assert torch.equal(depth.cpu(), (reach.sum(-1) - 1).to(torch.int32))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), slots=st.integers(1, 3), rows=st.integers(1, 70), spare=st.integers(0, 5))
def test_bits_equal_the_dense_mask(
    batch: Callable[..., Any], device: str, seed: int, slots: int, rows: int, spare: int
) -> None:
    check(batch(seed, slots, rows + spare, spare=spare).parents, device)


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 64, 65, 200])
def test_chains_of_every_word_boundary(rows: int, device: str) -> None:
    check((torch.arange(rows, dtype=torch.int32) - 1).clamp_min(0)[None], device)


def test_the_largest_tree(batch: Callable[..., Any], device: str) -> None:
    check(batch(5, 2, 512, spare=9, chain=True).parents, device)


def test_parents_may_lie_between_other_fields(batch: Callable[..., Any], device: str) -> None:
    parents = batch(7, 3, 40, spare=3).parents
    between = torch.stack([torch.full_like(parents, -1), parents, torch.full_like(parents, -1)], 1).to(device)[:, 1]
    bits, depth = tree_bits(between)
    expected = tree_bits(parents.to(device))
    assert torch.equal(bits, expected[0])
    assert torch.equal(depth, expected[1])


def test_parents_of_another_order_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        tree_bits(torch.zeros(4, 3, dtype=torch.int32, device=device).T)
