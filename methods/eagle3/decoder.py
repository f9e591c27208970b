"""EAGLE-3's decoder: a small head reads the target's features and drafts a tree of its most probable paths."""

from __future__ import annotations

from typing import Literal

from specbench.decoding import Drafting, Target, option
from specbench.heads import LevelDecoder, LevelOptions


class Options(LevelOptions):
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


class Decoder(LevelDecoder):
    """Draft the tree that the head grows."""

    METHOD = "eagle3"

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.methods.eagle3.drafting import prepare  # imports torch, which plans and lists do not need

        return prepare(options, target)
