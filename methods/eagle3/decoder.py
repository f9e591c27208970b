"""EAGLE-3's decoder: a small head reads the target's features and drafts a tree of its most probable paths."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from specbench.decoding import Drafting, HeadDecoder, HeadOptions, Target, option


class Options(HeadOptions):
    """Options of EAGLE-3."""

    head: str | None = option(
        None,
        help="folder or hub id of the draft head, ::SUBFOLDER may follow; random, random-parallel: untrained, for "
        "timing; default is the head of the model's alias, if it has one",
    )
    producer: Literal["auto", "original", "specforge", "speculators", "deepspec"] = option(
        "auto", help="how to read the head's config.json; auto decides from its fields"
    )
    tree: Literal["dynamic", "chain"] = option("dynamic", help="EAGLE-2's tree of the most probable paths, or one path")
    budget: int = option(60, "B", help="rows of the tree at most, root included: EAGLE's total_token", ge=2, le=512)
    width: int = option(
        10, "K", "k", help="paths that a level extends, and tokens added to each: EAGLE's top_k", ge=1, le=64
    )
    depth: int = option(8, "D", help="tokens of the longest path, one pass of the head per level", ge=1, le=64)
    verify: Literal["noise", "block"] = option(
        "noise",
        help="tree=chain: how sampled drafts are accepted: by the target's noise, or by block verification (texts have "
        "AR's distribution but are not AR's)",
    )

    @model_validator(mode="after")
    def _verifies_chains(self) -> Options:
        if self.verify == "block" and self.tree != "chain":
            raise ValueError("verify=block verifies chains; set tree=chain")
        if self.verify == "block" and self.confidence:
            raise ValueError("verify=block needs every sampled token, whatever its probability; set confidence=0")
        return self


class Decoder(HeadDecoder):
    """Draft the tree that the head grows."""

    METHOD = "eagle3"

    @staticmethod
    def max_rows(options: Options) -> int:
        if options.tree == "chain" or options.width == 1:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def own_noise(options: Options) -> bool:
        return options.verify == "block"

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.methods.eagle3.drafting import prepare  # imports torch, which plans and lists do not need

        return prepare(options, target)
