"""JetSpec's rounds: which head drafts, how deep, and which of its paths become rows of the tree."""

from __future__ import annotations

from typing import Any

from specbench.common import UsageError
from specbench.decoding import Drafting, Knobs, Target
from specbench.heads import BlockHead, BlockRounds, marginal_trees


def prepare(options: Any, target: Target) -> Drafting:
    """Load the head that the options name and make it ready for a target."""
    head, weights = BlockHead.prepared("jetspec", options.head, target)
    limit = head.config.drafts
    depth = options.depth or limit
    if depth > limit:
        raise UsageError(
            f"jetspec.depth={depth} is more than head {weights['head']} drafts: its block has {limit} guesses"
        )
    width = 1 if options.tree == "chain" else options.width
    passes = target.once(
        ("jetspec", options.head, depth, width),
        lambda: BlockRounds(head, target, depth=depth, width=width, weights=weights),
    )
    name = f"jetspec {weights.get('head_sha256', weights['head'])}, depth {depth}, width {width}"
    knobs = Knobs(options.width, options.beta, options.g0, options.spine)
    trees = marginal_trees(passes, target, name, options.tree, options.budget, knobs)
    return Drafting(passes, trees, options.confidence)
