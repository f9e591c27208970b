"""Random token trees, and ones that hide a given continuation somewhere among their branches."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specbench.decoding.tree import TokenTree


def random_tree(rng: random.Random, root: int, vocab: int, rows: int) -> TokenTree:
    """A tree of any shape with random tokens; about one row in four may not be accepted."""
    return hiding_tree(rng, root, [], vocab, rows - 1)


def hiding_tree(
    rng: random.Random, root: int, continuation: Sequence[int], vocab: int, noise: int, *, apart: bool = False
) -> TokenTree:
    """A tree with ``continuation`` as one path from its root, its rows scattered among ``noise`` random rows.

    Noise rows hang anywhere, under the hidden path too. Some repeat the token of a hidden sibling, so that a path can
    be reached twice, and some are marked as never accepted.

    Args:
        rng: source of all choices.
        root: token of row 0.
        continuation: tokens below it that must be reachable.
        vocab: number of token ids.
        noise: random rows.
        apart: put a noise row before each hidden row, so that the path cannot be the first rows.
    """
    tokens, parents, accept = [root], [-1], [True]
    last, placed = 0, 0  # the deepest hidden row so far, and how many there are
    if apart:
        order = [False, True] * len(continuation) + [False] * (noise - len(continuation))
    else:
        order = [True] * len(continuation) + [False] * noise
        rng.shuffle(order)
    for hidden in order:
        if hidden:
            parent, token, allowed = last, continuation[placed], True
            last, placed = len(tokens), placed + 1
        else:
            parent, token, allowed = rng.randrange(len(tokens)), rng.randrange(vocab), rng.random() < 0.75
            if parent == last and placed < len(continuation) and rng.random() < 0.5:
                token = continuation[placed]
        tokens.append(token)
        parents.append(parent)
        accept.append(allowed)
    return TokenTree(tokens, parents, accept)
