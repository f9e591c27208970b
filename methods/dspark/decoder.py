"""DSpark's decoder: one pass of a small head over a block, then a Markov chain over its positions."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from specbench.decoding import Drafting, HeadDecoder, HeadOptions, Target, option


class Options(HeadOptions):
    """Options of DSpark."""

    tree: Literal["dynamic", "chain"] = option(
        "dynamic", help="the most probable paths of the Markov chain, as in EAGLE-2, or one path, as in DeepSpec"
    )
    width: int = option(7, "K", "k", help="paths that a level extends, and tokens added to each", ge=1, le=64)
    depth: int | None = option(None, "D", help="positions drafted; default is all of the head's block", ge=1)
    confidence: float = option(
        0.0,
        help="leave out drafts (and those after them) whose probability of acceptance, as the confidence head predicts "
        "it, is below this; without such a head the draft's own probability counts; 0 keeps all",
        ge=0,
        le=1,
    )
    verify: Literal["noise", "block"] = option(
        "noise",
        help="tree=chain: how sampled drafts are accepted: by the target's noise, or by block verification (texts have "
        "AR's distribution but are not AR's)",
    )

    @model_validator(mode="after")
    def _verifies_chains(self) -> Options:
        if self.verify == "block" and self.tree != "chain":
            raise ValueError("verify=block verifies chains; set tree=chain")
        return self


class Decoder(HeadDecoder):
    """Draft the paths that the Markov head scores."""

    METHOD = "dspark"

    @staticmethod
    def max_rows(options: Options) -> int:
        if (options.tree == "chain" or options.width == 1) and options.depth is not None:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def own_noise(options: Options) -> bool:
        return options.verify == "block"

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.methods.dspark.drafting import prepare  # imports torch, which plans and lists do not need

        return prepare(options, target)
