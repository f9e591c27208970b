"""Options that draft less: leave out improbable tokens, or stop drafting while it does not pay."""

from __future__ import annotations

import math
from typing import Any

from specbench.common import option
from specbench.decoding.tree import TokenTree

#: Figure of a row with the option ``stop``.
DRAFTED = "drafted"
STOP_MEASURES = {DRAFTED: "share of forwards that verified drafts; the others were plain steps"}


def confidence_option() -> Any:
    """Return the option ``confidence`` of a method whose drafts have scores."""
    return option(
        0.0,
        "p_min",
        help="smallest probability of a draft token given its path, according to the drafter; tokens below it are left "
        "out, with what follows them; 0 keeps all",
        ge=0,
        le=1,
    )


def stop_option() -> Any:
    """Return the option ``stop`` of a method that implements :meth:`~specbench.decoding.Decoder.instead`."""
    return option(
        False,
        help="draft only while that is faster than plain steps at this concurrency and length, by the times of the "
        "run's own steps",
    )


def confident(tree: TokenTree, least: float) -> TokenTree:
    """Return a tree without the rows whose probability given their path is below ``least``, and their descendants.

    Rows without a score are kept. A tree with a proposal is returned whole: leaving out a sampled token because of its
    probability would change the distribution of those that are left.
    """
    scores = tree.row_scores() if least > 0 and tree.proposal is None else None
    if scores is None:
        return tree
    floor = math.log(least)
    row_of: dict[int, int] = {}  # old row -> new row, of those that are kept
    for row, (parent, score) in enumerate(zip(tree.parents, scores, strict=True)):
        if row == 0 or (parent in row_of and (score is None or score >= floor)):
            row_of[row] = len(row_of)
    if len(row_of) == len(tree):
        return tree
    rows = [*row_of]
    return TokenTree(
        [tree.tokens[row] for row in rows],
        [-1, *(row_of[tree.parents[row]] for row in rows[1:])],
        None if tree.accept is None else [tree.accept[row] for row in rows],
        tree.origins if isinstance(tree.origins, str) else [tree.origins[row] for row in rows],
        [scores[row] for row in rows],
    )
