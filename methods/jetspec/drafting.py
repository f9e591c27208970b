"""JetSpec's rounds: which head drafts, how deep, and which of its paths become rows of the tree."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from specbench.common import UsageError
from specbench.decoding import BUILDERS, Drafting, Knobs, Target
from specbench.heads import BlockHead, BlockRounds

_TIMED = 5
_CONTEXT = 512  # length of the text after which a pass is timed, if the capacity allows it


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
    seconds = None
    if options.tree == "auto":
        context = min(_CONTEXT, target.capacity)
        name = f"jetspec {weights.get('head_sha256', weights['head'])}, depth {depth}, width {width}, "
        drafting = target.measured(
            f"{name}budget {options.budget}, after {context} tokens",
            lambda: draft_seconds(passes, options.budget, context),
        )
        # A whole step: the head's cost is the same for a tree of any size.
        seconds = {rows: step + drafting for rows, step in target.step_seconds(options.budget)}
    knobs = Knobs(options.width, options.beta, options.g0, options.spine, seconds)
    build = BUILDERS[options.tree]
    return Drafting(passes, lambda slot: build(passes.marginals(slot), options.budget, knobs), options.confidence)


def draft_seconds(passes: BlockRounds, budget: int, context: int) -> float:
    """Median time of a pass and of building its tree, for one sequence with ``context`` features. Needs a free slot."""
    slot = passes.open()
    taken = []
    features = passes.head.fc.weight.new_zeros(max(1, context - _TIMED), passes.head.features)
    try:
        # The text grows by a token each time. The median ignores the first pass, which waits for a whole prompt.
        passes.append(slot, [0] * len(features), features)
        for _ in range(_TIMED):
            started = time.perf_counter()
            BUILDERS["optimal"](passes.marginals(slot), budget)
            taken.append(time.perf_counter() - started)
            passes.append(slot, [0], features[:1])
    finally:
        passes.close(slot)
    return median(taken)
