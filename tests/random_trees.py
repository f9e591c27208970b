"""Random token trees, and ones that hide a given continuation somewhere among their branches."""

from __future__ import annotations

import random

from benchmarks.gpu_check.wild_trees import hiding_tree as hiding_tree
from specbench.decoding.tree import TokenTree


def random_tree(rng: random.Random, root: int, vocab: int, rows: int) -> TokenTree:
    """A tree of any shape with random tokens; about one row in four may not be accepted."""
    return hiding_tree(rng, root, [], vocab, rows - 1)
