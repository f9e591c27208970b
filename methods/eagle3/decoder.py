"""EAGLE-3: a small head reads the target's features and drafts, token by token, a tree of its most probable paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, fsum
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from specbench import decoding
from specbench.decoding import Context, StepResult, Target, TokenTree, option
from specbench.decoding.head_decoder import HeadDecoder, no_head
from specbench.decoding.pairs import Named, retrieve
from specbench.decoding.tree import Branch
from specbench.methods.eagle3.trees import best_path, totals
from specbench.models.head_config import shipped

if TYPE_CHECKING:
    from specbench.methods.eagle3.shared import Shared


class Options(decoding.Options):
    """Options of EAGLE-3."""

    head: str | None = option(
        None,
        help="folder or hub id of the draft head, ::SUBFOLDER may follow; random, random-parallel: untrained, for "
        "timing; default is the head that comes with the model's alias, where there is one",
    )
    producer: Literal["auto", "original", "specforge", "speculators"] = option(
        "auto", help="in whose sense the head's config.json is read; auto is by what it says"
    )
    tree: Literal["dynamic", "chain"] = option("dynamic", help="EAGLE-2's tree of the most probable paths, or one path")
    budget: int = option(60, "B", help="rows of the tree at most, root included (its total tokens)", ge=2, le=512)
    width: int = option(
        10, "K", "k", help="paths that a level extends, and tokens by which each (its top-k)", ge=1, le=64
    )
    depth: int = option(8, "D", help="tokens of the longest path; each but the first takes a pass", ge=1, le=64)
    verify: Literal["noise", "block"] = option(
        "noise",
        help="tree=chain: what accepts sampled drafts: the target's noise, or block verification, whose texts are not "
        "AR's but of AR's distribution",
    )
    retrieve: Named | None = retrieve()

    @model_validator(mode="after")
    def _verifies_chains(self) -> Options:
        if self.verify == "block" and self.tree != "chain":
            raise ValueError("verify=block verifies chains; set tree=chain")
        return self


class Decoder(HeadDecoder):
    """Feeds the head with what the target computed, and drafts the tree that it grows."""

    def __init__(self, options: Options, context: Context) -> None:
        super().__init__(options, context)
        self._unread: list[int] = []  # tokens of the prompt that the first features stand before
        self._trees: list[TokenTree] = []

    @staticmethod
    def max_rows(options: Options) -> int:
        if options.tree == "chain" or options.width == 1:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def own_noise(options: Options) -> bool:
        return options.verify == "block"

    @staticmethod
    def check(options: Options, model: str) -> None:
        if options.head is None and shipped("eagle3", model) is None:
            raise no_head("eagle3")

    @staticmethod
    def prepare(options: Options, target: Target) -> Shared:
        from specbench.methods.eagle3 import shared  # torch: plans and lists do without

        return shared.prepare(options, target)

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self._unread = list(prompt[1:])

    def observe(self, result: StepResult) -> None:
        assert self._slot is not None
        features: Any = result.hidden
        self._shared.rounds.append(self._slot, [*self._unread, *result.emitted], features)
        self._unread = []

    def draft(self) -> TokenTree:
        assert self._slot is not None
        tree = self._shared.rounds.tree(self._slot, self._shared.budget)
        self.draft_forwards += self._shared.passes
        self._trees.append(tree)
        return tree

    def branches(self) -> Sequence[Branch]:
        found = [best_path(tree) for tree in self._trees]
        return [Branch(step, tokens, logp) for step, (tokens, logp) in enumerate(found)]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        rounds = len(self._trees)
        if not rounds:
            return {}
        expected = fsum(exp(total) for tree in self._trees for total in totals(tree)[1:])
        return {"expected": expected / rounds, "tree_depth": sum(tree.depth for tree in self._trees) / rounds}
