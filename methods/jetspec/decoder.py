"""Parallel tree drafting (JetSpec): one pass of a small head scores a whole block; the best paths become a tree."""

from __future__ import annotations

from typing import Literal

from specbench.decoding import Drafting, HeadDecoder, HeadOptions, Target, option


class Options(HeadOptions):
    """Options of parallel tree drafting."""

    tree: Literal["optimal", "accum-logp", "top2gap", "chain", "auto"] = option(
        "optimal", help="which paths become rows; auto also chooses how many, from measured step times"
    )
    depth: int | None = option(None, "D", help="positions drafted; default is all of the head's block", ge=1)
    spine: bool = option(True, help="tree=optimal: place the best token of every position first")
    beta: float = option(2.0, help="tree=top2gap: how sharply the fan-out falls with the gap, per nat", ge=0)
    g0: float = option(1.0, help="tree=top2gap: gap at which half the fan-out is left, in nats")


class Decoder(HeadDecoder):
    """Build a tree from the head's scores."""

    METHOD = "jetspec"

    @staticmethod
    def max_rows(options: Options) -> int:
        if options.tree == "chain" and options.depth is not None:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.methods.jetspec.drafting import prepare  # imports torch, which plans and lists do not need

        return prepare(options, target)
