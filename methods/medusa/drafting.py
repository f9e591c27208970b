"""Medusa's rounds: all heads over the last hidden state, in one pass without a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from specbench.common import UsageError
from specbench.decoding import Drafting, Knobs, Target
from specbench.engine import HeadRows
from specbench.heads import HeadRounds, marginal_trees
from specbench.methods.medusa.head import DraftHead
from specbench.methods.medusa.trees import BUILT, filled, first_nodes


class Rounds(HeadRounds):
    """Rounds of the first ``depth`` heads, which find ``width`` candidates each."""

    def __init__(
        self, head: DraftHead, target: Target, *, depth: int, width: int, weights: Mapping[str, str] | None = None
    ) -> None:
        self._depth, self._width = depth, min(width, head.config.drafted)
        self._ids = head.draft_ids
        self._scorer = head.scorer(target.model.get_output_embeddings()) if head.config.scorer == "target" else None
        scorer = self._scorer if self._ids is not None else None
        super().__init__(head, target, path=depth, rows=0, scorer=scorer, weights=weights)

    def read(self, rows: HeadRows) -> Tensor:
        """Return the last hidden states; the heads store nothing of a text."""
        assert rows.features is not None
        return rows.features

    def draft(self, rows: HeadRows, found: Tensor) -> Sequence[Tensor]:
        """The best tokens [S, D, K] after each text, and their log-probabilities."""
        outputs = self.head(rows.last(found)[:, 0], self._depth)
        logp, best = rows.best(self.head.scores(outputs, self._scorer), self._width)
        return best if self._ids is None else self._ids[best], logp


def prepare(options: Any, target: Target) -> Drafting:
    """Load the heads that the options name and make them ready for a target."""
    head, weights = DraftHead.prepared("medusa", options.head, target)
    config = head.config
    if config.stated not in (0, config.heads):
        target.warn(
            f"the config.json of head {weights['head']} says {config.stated} heads and its file has {config.heads}: "
            "all heads of the file are used"
        )
    depth = options.depth or config.heads
    if depth > config.heads:
        raise UsageError(
            f"medusa.depth={depth} is more than head {weights['head']} drafts: it has {config.heads} heads"
        )
    if options.tree not in BUILT:
        nodes = first_nodes(options.tree, options.budget, options.width, depth)
        depth, width = max(map(len, nodes)), 1 + max(map(max, nodes))
    else:
        nodes, width = (), 1 if options.tree == "chain" else options.width
    rounds = target.once(
        ("medusa", options.head, depth, width),
        lambda: Rounds(head, target, depth=depth, width=width, weights=weights),
    )
    if nodes:
        return Drafting(rounds, lambda slot: filled(rounds.marginals(slot), nodes), options.confidence)
    name = f"medusa {weights.get('head_sha256', weights['head'])}, depth {depth}, width {width}"
    knobs = Knobs(options.width, spine=False)
    trees = marginal_trees(rounds, target, name, options.tree, options.budget, knobs)
    return Drafting(rounds, trees, options.confidence)
