"""Parallel tree drafting: one pass of a small head scores a whole block, and a heap makes a tree of it (JetSpec)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from specbench import decoding
from specbench.decoding import Context, StepResult, Target, TokenTree, option
from specbench.decoding.head_decoder import HeadDecoder, no_head
from specbench.decoding.pairs import Named, retrieve
from specbench.decoding.tree import Branch
from specbench.decoding.trees.marginals import Marginals, best_branch, expected_accepted
from specbench.models.head_config import shipped

if TYPE_CHECKING:
    from specbench.methods.jetspec.shared import Shared


class Options(decoding.Options):
    """Options of parallel tree drafting."""

    head: str | None = option(
        None,
        help="folder or hub id of the draft head, ::SUBFOLDER may follow; random: untrained, for timing; default is "
        "the head that comes with the model's alias, where there is one",
    )
    tree: Literal["optimal", "accum-logp", "top2gap", "chain", "auto"] = option(
        "optimal", help="which paths become rows; auto also chooses how many, by measured step times"
    )
    budget: int = option(64, "B", help="rows of the tree at most, root included", ge=2, le=512)
    width: int = option(7, "K", "k", help="candidates of a position at most", ge=1, le=512)
    depth: int | None = option(None, "D", help="positions drafted; default is all that the head's block has", ge=1)
    spine: bool = option(True, help="tree=optimal: place the best token of every position first")
    beta: float = option(2.0, help="tree=top2gap: how sharply the fan-out falls with the gap, per nat", ge=0)
    g0: float = option(1.0, help="tree=top2gap: gap at which half the fan-out is left, in nats")
    retrieve: Named | None = retrieve()


class Decoder(HeadDecoder):
    """Feeds the head with what the target computed and turns its scores into a tree."""

    def __init__(self, options: Options, context: Context) -> None:
        super().__init__(options, context)
        self._drafts: list[tuple[TokenTree, Marginals]] = []

    @staticmethod
    def max_rows(options: Options) -> int:
        if options.tree == "chain" and options.depth is not None:
            return min(options.budget, 1 + options.depth)
        return options.budget

    @staticmethod
    def check(options: Options, model: str) -> None:
        if options.head is None and shipped("jetspec", model) is None:
            raise no_head("jetspec")

    @staticmethod
    def prepare(options: Options, target: Target) -> Shared:
        from specbench.methods.jetspec import shared  # torch: plans and lists do without

        return shared.prepare(options, target)

    def observe(self, result: StepResult) -> None:
        assert self._slot is not None
        features: Any = result.hidden
        # Features of every token but the last emitted one: it becomes the anchor (JetSpec §3.1).
        self._shared.rounds.append(self._slot, features, result.emitted[-1])

    def draft(self) -> TokenTree:
        assert self._slot is not None
        marginals = self._shared.rounds.marginals(self._slot)
        self.draft_forwards += 1
        tree = self._shared.grow(marginals)
        self._drafts.append((tree, marginals))
        return tree

    def branches(self) -> Sequence[Branch]:
        found = [best_branch(tree, marginals) for tree, marginals in self._drafts]
        return [Branch(step, tokens, logp) for step, (tokens, logp) in enumerate(found)]

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        rounds = len(self._drafts)
        if not rounds:
            return {}
        expected = sum(expected_accepted(tree, marginals) for tree, marginals in self._drafts)
        depth = sum(tree.depth for tree, _ in self._drafts)
        return {"expected": expected / rounds, "tree_depth": depth / rounds}
