"""Options and decoder of methods whose head drafts a tree level by level."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from specbench.decoding import HeadDecoder, HeadOptions, option


class LevelOptions(HeadOptions):
    """Options of every method that drafts level by level; a subclass adds ``tree``."""

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
    def _verifies_chains(self) -> LevelOptions:
        if self.verify == "block" and getattr(self, "tree", "chain") != "chain":
            raise ValueError("verify=block verifies chains; set tree=chain")
        if self.verify == "block" and self.confidence:
            raise ValueError("verify=block needs every sampled token, whatever its probability; set confidence=0")
        return self


class LevelDecoder(HeadDecoder):
    """Decoder whose trees are chains, or the most probable paths of a head."""

    @staticmethod
    def max_rows(options: Any) -> int:
        if options.tree == "chain" or options.width == 1:
            return min(options.budget, 1 + options.depth)
        return int(options.budget)

    @staticmethod
    def own_noise(options: Any) -> bool:
        return bool(options.verify == "block")
