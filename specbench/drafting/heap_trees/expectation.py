"""What a tree is worth if the head is right about its own probabilities."""

from __future__ import annotations

import math

from specbench.drafting.heap_trees.marginals import Marginals
from specbench.engine.tree import TokenTree


def expected_accepted(tree: TokenTree, marginals: Marginals) -> float:
    """Expected number of accepted drafts; the target's own next token, which always comes, is not counted.

    A row is accepted when the target says its whole path, so the expectation is the sum of the rows' path
    probabilities (DDTree). It is exact for targets that draw each position from its marginal, and for real ones as
    good as the head is calibrated.

    Args:
        tree: any tree from the marginals' root. A token that is not among the candidates of its depth counts as
            impossible, and a path that stands twice in the tree counts once.
        marginals: what the head scored.

    Returns:
        A number of tokens, 0 to the tree's depth.
    """
    likely = [
        dict(zip(tokens, logp, strict=True)) for tokens, logp in zip(marginals.tokens, marginals.logp, strict=True)
    ]
    paths: dict[tuple[int, int], int] = {}  # (parent, token) -> the first row of that path
    same = [0] * len(tree)  # row -> the first row of its path
    depths = [0] * len(tree)
    scores = [0.0] + [-math.inf] * (len(tree) - 1)
    for row in range(1, len(tree)):
        parent, token = same[tree.parents[row]], tree.tokens[row]
        depths[row] = depths[parent] + 1
        if tree.accept is not None and not tree.accept[row]:
            same[row] = row
            continue
        same[row] = paths.setdefault((parent, token), row)
        if same[row] == row and depths[row] <= len(likely):
            scores[row] = scores[parent] + likely[depths[row] - 1].get(token, -math.inf)
    return math.fsum(map(math.exp, scores[1:]))
