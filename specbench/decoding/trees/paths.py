"""Paths of a scored tree: what each is worth to the drafter that made it."""

from __future__ import annotations

import math

from specbench.decoding.tree import TokenTree


def totals(tree: TokenTree) -> list[float]:
    """Total log-probability of the path to each row; the root's is 0, and -inf where a token has no score."""
    found = [0.0]
    for parent, score in zip(tree.parents[1:], (tree.row_scores() or [None] * len(tree))[1:], strict=True):
        found.append(found[parent] + (-math.inf if score is None else score))
    return found


def expected_accepted(tree: TokenTree) -> float:
    """Expected number of accepted drafts; the target's own next token, which always comes, is not counted.

    A row is accepted when the target says its whole path, so the expectation is the sum of the rows' path
    probabilities (DDTree). It is exact for targets that draw each position from what the drafter says, and for real
    ones as good as the drafter is calibrated. No path may stand in the tree twice.
    """
    return math.fsum(map(math.exp, totals(tree)[1:]))


def best_path(tree: TokenTree) -> tuple[list[int], float]:
    """Tokens of the path that takes the best-scored child each time, down to a leaf, and its log-probability.

    No tokens of a tree that is its root alone.
    """
    children: dict[int, list[int]] = {}
    for row in range(1, len(tree)):
        children.setdefault(tree.parents[row], []).append(row)
    scores = totals(tree)
    tokens: list[int] = []
    row = 0
    while row in children:
        row = max(children[row], key=scores.__getitem__)
        tokens.append(tree.tokens[row])
    return tokens, scores[row]
