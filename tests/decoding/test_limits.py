"""Drafts without improbable tokens."""

from __future__ import annotations

import math

import torch

from specbench.decoding import Proposal, TokenTree, confident

P = [None, *map(math.log, (0.9, 0.2, 0.5, 0.8, 0.1, 0.9))]
TREE = TokenTree(
    [7, 1, 2, 3, 4, 5, 6],
    [-1, 0, 0, 1, 2, 3, 5],
    accept=[True, True, True, True, True, False, True],
    origins=list("rabcdef"),
    scores=P,
)


def test_rows_below_the_threshold_go_with_what_follows_them() -> None:
    assert confident(TREE, 0.0) is TREE
    assert confident(TREE, 0.1) is TREE
    left = confident(TREE, 0.5)
    assert (left.tokens, left.parents) == ((7, 1, 3), (-1, 0, 1))
    assert (left.accept, left.origins, left.row_scores()) == ((True, True, True), ("r", "a", "c"), (None, P[1], P[3]))
    assert confident(TREE, 0.15).tokens == (7, 1, 2, 3, 4)
    assert confident(TREE, 0.95).tokens == (7,)


def test_rows_without_scores_stay_and_so_does_a_sampled_chain() -> None:
    assert confident(TokenTree.chain([1, 2]), 0.9) == TokenTree.chain([1, 2])
    some = TokenTree.chain([1, 2, 3], scores=[None, None, math.log(0.5)])
    assert confident(some, 0.9).tokens == (1, 2)
    assert confident(TokenTree.chain([1, 2], scores=lambda tree: [None, -9.0]), 0.9).tokens == (1,)
    sampled = TokenTree.chain([1, 2], scores=[None, -9.0], proposal=Proposal(torch.ones(1, 4) / 4))
    assert confident(sampled, 0.9) is sampled
