"""Compute path probabilities of a scored tree, its expected accepted drafts, and its best path."""

from __future__ import annotations

import math

from specbench.decoding.tree import TokenTree


def totals(tree: TokenTree) -> list[float]:
    """Return the log-probability of the path to each row: 0 for the root, -inf if a token on the path has no score."""
    found = [0.0]
    for parent, score in zip(tree.parents[1:], (tree.row_scores() or [None] * len(tree))[1:], strict=True):
        found.append(found[parent] + (-math.inf if score is None else score))
    return found


def expected_accepted(tree: TokenTree) -> float:
    """Return the expected number of accepted drafts, without the bonus token.

    A row is accepted if the target emits its whole path, so the expectation is the sum of the rows' path probabilities
    (DDTree). It is exact if the target samples each position from the drafter's distribution; for real targets it is as
    accurate as the drafter is calibrated. The tree must not contain a path twice.
    """
    return math.fsum(map(math.exp, totals(tree)[1:]))


def best_path(tree: TokenTree) -> tuple[list[int], float]:
    """Return the tokens of the path that follows the best-scored child down to a leaf, and its log-probability.

    A tree with only a root has no tokens.
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
