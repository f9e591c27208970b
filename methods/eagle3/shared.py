"""What all sequences of a run share: the head, its rounds, and the size of their trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.common import UsageError
from specbench.decoding import Target
from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.drafting import Drafts
from specbench.methods.eagle3.head import CONVERT, DraftHead
from specbench.models.draft_head import ready
from specbench.models.head_config import shipped
from specbench.models.head_files import HeadFiles

#: Heads that need no files: layers of each, and whether it drafts all in one pass. P-EAGLE's published sizes have four.
RANDOM: Mapping[str, tuple[int, bool]] = {"random": (1, False), "random-parallel": (4, True)}


@dataclass(frozen=True)
class Shared:
    """A head ready to draft: trees of ``budget`` rows, root included, in ``passes`` forwards of the head a round."""

    rounds: Drafts
    taps: tuple[int, ...]
    weights: Mapping[str, str]
    budget: int
    passes: int


def prepare(options: Any, target: Target) -> Shared:
    """Loads the head that the options name and makes it ready for a target."""
    producer = None if options.producer == "auto" else options.producer
    head, weights = target.once(("eagle3", options.head, producer), lambda: _load(options.head, producer, target))
    if head.draft_ids is not None and options.head not in RANDOM and not head.d2t.any():
        target.warn(
            f"the head {weights['head']} drafts the target's first {len(head.draft_ids):,} tokens only, for its token "
            "map d2t is all zeros: probably it was never filled, and drafts are then hardly ever accepted; take a "
            "whole copy of the head"
        )
    width = 1 if options.tree == "chain" else options.width
    # A chain of less rows than its depth needs no pass behind them.
    depth = min(options.depth, options.budget - 1)
    draws = options.verify == "block"
    if draws and head.config.parallel:
        raise UsageError("eagle3.verify=block draws each token behind the last one, which a parallel head cannot do")
    key = "eagle3", options.head, producer, depth, width, draws
    drafts = target.once(key, lambda: Drafts(head, target, depth=depth, width=width, draws=draws))
    passes = 1 + (min(1, depth - 1) if head.config.parallel else depth - 1)
    return Shared(drafts, head.config.taps, weights, options.budget, passes)


def _load(name: str | None, producer: Any, target: Target) -> tuple[DraftHead, dict[str, str]]:
    """The head, and what the record says of it."""
    model = target.model
    config = model.config.get_text_config()
    if name is None:
        own = shipped("eagle3", target.name)
        if own is None:
            raise UsageError(f"no head comes with {target.name}; give one with --head")
        name = str(own)

    def random(name: str) -> DraftHead | None:
        if name not in RANDOM:
            return None
        layers, parallel = RANDOM[name]
        last = int(model.get_input_embeddings().weight.shape[0]) - 1
        made = HeadConfig.for_target(config, layers=layers, mask_token_id=last if parallel else None)
        return DraftHead.random(made, device=model.device, dtype=model.dtype)

    def read(files: HeadFiles) -> DraftHead:
        return DraftHead.read(files, config, producer=producer, device=model.device, dtype=model.dtype)

    return ready(name, random, read, CONVERT)
