"""EAGLE's decoder: a layer after the target's last one drafts a tree, level by level (EAGLE-1, EAGLE-2, HASS)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from specbench.decoding import Drafting, Target, option
from specbench.heads import LevelDecoder, LevelOptions
from specbench.methods.eagle.trees import TREE, nodes_of


class Options(LevelOptions):
    """Options of EAGLE."""

    tree: Annotated[str, AfterValidator(TREE.named)] = option(
        "dynamic",
        help="dynamic: EAGLE-2's tree of the most probable paths; static: EAGLE-1's tree of 25 nodes; chain: one path; "
        "or a file of paths, as [[0], [1], [0, 0]] or as 0 1 00",
    )
    depth: int = option(6, "D", help="tokens of the longest path, one pass of the head per level", ge=1, le=64)


class Decoder(LevelDecoder):
    """Draft the tree that the head grows."""

    METHOD = "eagle"

    @staticmethod
    def max_rows(options: Any) -> int:
        nodes = nodes_of(options)
        return 1 + len(nodes) if nodes else LevelDecoder.max_rows(options)

    @staticmethod
    def prepare(options: Options, target: Target) -> Drafting:
        from specbench.heads import level_drafting
        from specbench.methods.eagle.head import DraftHead  # imports torch, which plans and lists do not need

        head, weights = DraftHead.prepared("eagle", options.head, target)
        return level_drafting("eagle", options, target, head, weights, nodes=nodes_of(options))
