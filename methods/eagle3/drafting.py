"""EAGLE-3's rounds: load the head that the options name and make it ready for a target."""

from __future__ import annotations

from typing import Any

from specbench.common import UsageError
from specbench.decoding import Drafting, Target
from specbench.heads import level_drafting
from specbench.methods.eagle3.config import RANDOM
from specbench.methods.eagle3.head import DraftHead


def prepare(options: Any, target: Target) -> Drafting:
    """Load the head that the options name and make it ready for a target."""
    producer = None if options.producer == "auto" else options.producer
    head, weights = DraftHead.prepared("eagle3", options.head, target, producer=producer)
    if head.draft_ids is not None and options.head not in RANDOM and not head.d2t.any():
        target.warn(
            f"the head {weights['head']} drafts the target's first {len(head.draft_ids):,} tokens only, for its token "
            "map d2t is all zeros: probably it was never filled, and drafts are then hardly ever accepted; take a "
            "whole copy of the head"
        )
    if options.verify == "block" and head.config.parallel:
        raise UsageError("eagle3.verify=block samples each token after the one before, which a parallel head cannot do")
    return level_drafting("eagle3", options, target, head, weights, producer)
