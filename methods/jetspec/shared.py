"""What all sequences of a run share: the head, its pass, and how trees are grown from what it says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.common import UsageError
from specbench.decoding import Target, TokenTree
from specbench.decoding.trees.builders import BUILDERS, Knobs
from specbench.decoding.trees.marginals import Marginals
from specbench.methods.jetspec.config import HeadConfig
from specbench.methods.jetspec.drafting import BlockPass
from specbench.methods.jetspec.head import DraftHead
from specbench.models.draft_head import ready
from specbench.models.head_config import shipped

#: Heads that need no files, and whether they are causal.
RANDOM: Mapping[str, bool] = {"random": True, "random-dflash": False}
_TIMED = 5
_CONTEXT = 512  # features behind which a pass is timed, as far as the capacity allows


@dataclass(frozen=True)
class Shared:
    """A head ready to draft trees of ``budget`` rows, root included."""

    rounds: BlockPass
    taps: tuple[int, ...]
    weights: Mapping[str, str]
    tree: str
    budget: int
    knobs: Knobs

    def grow(self, marginals: Marginals) -> TokenTree:
        """The tree for one round."""
        return BUILDERS[self.tree](marginals, self.budget, self.knobs)


def prepare(options: Any, target: Target) -> Shared:
    """Loads the head that the options name and makes it ready for a target."""
    head, weights = target.once(("jetspec", options.head), lambda: _load(options.head, target))
    limit = head.config.block_size - 1
    depth = options.depth or limit
    if depth > limit:
        raise UsageError(
            f"jetspec.depth={depth} is more than head {weights['head']} drafts: its block of {limit + 1} has {limit} "
            "guesses"
        )
    width = 1 if options.tree == "chain" else options.width
    passes = target.once(
        ("jetspec", options.head, depth, width),
        lambda: BlockPass(head, target, depth=depth, width=width),
    )
    knobs = Knobs(options.width, options.beta, options.g0, options.spine)
    if options.tree == "auto":
        context = min(_CONTEXT, target.capacity)
        name = f"jetspec {weights.get('head_sha256', weights['head'])}, depth {depth}, width {width}, "
        drafting = target.measured(
            f"{name}budget {options.budget}, behind {context} tokens",
            lambda: draft_seconds(passes, options.budget, context),
        )
        # A whole step: what the head costs is paid for a tree of any size.
        seconds = {rows: step + drafting for rows, step in target.step_seconds(options.budget)}
        knobs = Knobs(options.width, options.beta, options.g0, options.spine, seconds)
    return Shared(passes, head.config.target_layer_ids, weights, options.tree, options.budget, knobs)


def draft_seconds(passes: BlockPass, budget: int, context: int) -> float:
    """Median time of a pass and of a tree from it, for one sequence with ``context`` features. Needs a free slot."""
    slot = passes.open()
    taken = []
    try:
        # The text grows by a token each time. That the first pass waits for a whole prompt is no median's business.
        passes.append(slot, passes.no_features(max(1, context - _TIMED)), 0)
        for _ in range(_TIMED):
            started = time.perf_counter()
            BUILDERS["optimal"](passes.marginals(slot), budget)
            taken.append(time.perf_counter() - started)
            passes.append(slot, passes.no_features(1), 0)
    finally:
        passes.close(slot)
    return sorted(taken)[_TIMED // 2]


def _load(name: str | None, target: Target) -> tuple[DraftHead, dict[str, str]]:
    """The head, and what the record says of it."""
    model = target.model
    config = model.config.get_text_config()
    if name is None:
        own = shipped("jetspec", target.name)
        if own is None:  # where the target's name is known, Decoder.check has said so
            raise UsageError(f"jetspec has no head for {target.name}; name one by --head")
        name = str(own)

    def random(name: str) -> DraftHead | None:
        if name not in RANDOM:
            return None
        rows = model.get_input_embeddings().weight.shape[0]
        made = HeadConfig.for_target(config, mask_token_id=rows - 1, causal=RANDOM[name])
        return DraftHead.random(made, device=model.device, dtype=model.dtype)

    return ready(name, random, lambda files: DraftHead.read(files, config, device=model.device, dtype=model.dtype))
