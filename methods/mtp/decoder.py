"""Multi-token prediction: the checkpoint's own further layers draft, level by level."""

from __future__ import annotations

from typing import Literal

from specbench.decoding import Drafting, Target, option
from specbench.heads import LevelDecoder, LevelOptions


class Options(LevelOptions):
    """Options of MTP."""

    head: str | None = option(
        None,
        help="folder or hub id of a checkpoint with the layer; default is the target's own; random is an untrained "
        "layer for timing",
    )
    tree: Literal["chain", "dynamic"] = option("chain", help="one path, or EAGLE-2's tree of the most probable paths")
    width: int = option(
        4, "K", "k", help="tree=dynamic: paths that a level extends, and tokens added to each", ge=1, le=64
    )
    depth: int = option(3, "D", help="tokens of the longest path, one pass of the layer per token", ge=1, le=64)
    layers: Literal["own", "first"] = option(
        "own",
        help="tree=chain: layer k drafts the k-th token if the checkpoint has several layers, or the first one drafts "
        "all",
    )
    feed: Literal["auto", "norm", "output"] = option(
        "auto",
        help="what stands for the hidden state of a draft token: the layer's output, or its norm; auto is what vLLM "
        "does for the family",
    )


class Decoder(LevelDecoder):
    """Draft with the target's MTP layer."""

    METHOD = "mtp"

    @classmethod
    def check(cls, options: Options, model: str) -> None:
        """Accept every target, because only its checkpoint shows whether it has the layer."""
        if options.head is not None:
            super().check(options, model)

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.heads import level_drafting
        from specbench.methods.mtp.drafting import LayeredRounds, MtpRounds  # imports torch, as the line below
        from specbench.methods.mtp.loading import prepared

        head, weights = prepared(options, target)
        layers, rounds = len(head.depths), MtpRounds
        if layers > 1:
            rounds = LayeredRounds
            if layers < options.depth:
                target.warn(f"{weights['head']} has {layers} MTP layers, so chains have {layers} draft tokens at most")
                options = options.model_copy(update={"depth": layers})
        return level_drafting("mtp", options, target, head, weights, options.feed, layers, rounds=rounds)
