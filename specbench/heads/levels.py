"""EAGLE-2's dynamic tree: the most probable of all scored paths (Li et al. 2024, arXiv:2406.16858, §4).

On the device, the head scores level by level: at each level the W paths with the highest total log-probability are
extended by W tokens each. Here, on the host, the best of all scored paths become rows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding import Node, Proposal, TokenTree

_WORD = "head"


@dataclass(frozen=True, slots=True)
class Levels:
    """The head's scores for one text: W tokens after it, then W tokens after each of the W best paths of each level.

    Attributes:
        root: the last emitted token.
        tokens: [W + (D - 1) · W²], sorted by level and then by the path that they extend.
        logp: natural log-probability of each token given its path, the same shape.
        best: [(D - 2) · W] indices of the W paths of a level's W² that were extended, from the second level on; on the
            first level all are extended.
        width: W.
    """

    root: int
    tokens: Sequence[int]
    logp: Sequence[float]
    best: Sequence[int]
    width: int

    def parents(self) -> list[int]:
        """Index of each candidate's parent; -1 for candidates that follow the text directly."""
        width, every = self.width, len(self.tokens)
        found = [-1] * width
        above = list(range(width))  # last candidates of the next level's paths
        level = 0
        while len(found) < every:
            start = len(found)
            found += [parent for parent in above for _ in range(width)]
            above = [start + one for one in self.best[level * width : (level + 1) * width]]
            level += 1
        return found

    def tree(self, budget: int) -> TokenTree:
        """The ``budget`` - 1 most probable paths under the root; among equal paths, those that were scored first.

        A path is never more probable than its prefix, so all prefixes of a path in the tree are in the tree, too. Paths
        with a token of probability 0 (-inf) are left out.
        """
        parents = self.parents()
        totals: list[float] = []
        for parent, logp in zip(parents, self.logp, strict=True):
            totals.append(logp + (totals[parent] if parent >= 0 else 0.0))
        every = [one for one, total in enumerate(totals) if total > -math.inf]
        kept = sorted(heapq.nsmallest(budget - 1, every, key=lambda one: (-totals[one], one)))
        row_of = {one: row for row, one in enumerate(kept, 1)}
        return TokenTree(
            [self.root, *(self.tokens[one] for one in kept)],
            [-1, *(0 if parents[one] < 0 else row_of[parents[one]] for one in kept)],
            origins=_WORD,
            scores=[None, *(self.logp[one] for one in kept)],
        )


def chain(root: int, tokens: Sequence[int], logp: Sequence[float], proposal: Proposal | None = None) -> TokenTree:
    """One path under the root; ``proposal``: the distributions that its tokens were sampled from, if any."""
    return TokenTree.chain([root, *tokens], origins=_WORD, scores=[None, *logp], proposal=proposal)


@dataclass(frozen=True, slots=True)
class WrittenLevel:
    """A level of a written tree, as indices int64 on the device; a level's first pass reads the row of the text.

    Attributes:
        nodes: index of each node among all candidates of the level, W for each extended row.
        extended: index of each extended row among the nodes of the level before; empty on the first level.
        above: index of each extended row's parent among the rows of the pass before.
        parents: the same among all draft rows; None if the rows follow the text.
    """

    nodes: Tensor
    extended: Tensor
    above: Tensor
    parents: Tensor | None


class WrittenLevels:
    """A written tree's levels: each extends the inner nodes of the level before. W = ``width`` candidates per row.

    ``nodes``: each after its parent. ``rows``: number of inner nodes; ``parents``: index of each node's parent among
    the nodes, which are sorted by level, -1 under the root.
    """

    def __init__(self, nodes: Sequence[Node], device: torch.device) -> None:
        ordered, inner = sorted(nodes, key=lambda node: (len(node), node)), {node[:-1] for node in nodes}
        self.width = 1 + max(rank for node in nodes for rank in node)
        at = {node: index for index, node in enumerate(ordered)}
        self.parents = [at.get(node[:-1], -1) for node in ordered]
        self._levels: list[WrittenLevel] = []
        self.rows = 0

        def on_device(found: Sequence[int]) -> Tensor:
            return torch.tensor(found, dtype=torch.int64, device=device)

        extended: list[Node] = [()]
        before: list[Node] = []
        for depth in range(1, 1 + len(ordered[-1])):
            level = [node for node in ordered if len(node) == depth]
            above: list[Node] = []
            if depth > 1:
                above, extended = extended, [node for node in before if node in inner]
            parents = [above.index(node[:-1]) for node in extended] if above else []
            first = self.rows - len(above)  # index of the first row of the pass before among all draft rows
            self._levels.append(
                WrittenLevel(
                    nodes=on_device([extended.index(node[:-1]) * self.width + node[-1] for node in level]),
                    extended=on_device([before.index(node) for node in extended] if before else []),
                    above=on_device(parents),
                    parents=on_device([first + one for one in parents]) if depth > 2 else None,
                )
            )
            self.rows += len(extended) if depth > 1 else 0
            before = level

    def __len__(self) -> int:
        return len(self._levels)

    def __iter__(self) -> Iterator[WrittenLevel]:
        return iter(self._levels)


def written(root: int, tokens: Sequence[int], logp: Sequence[float], parents: Sequence[int]) -> TokenTree:
    """A written tree: token and score of each node, in the order of :class:`WrittenLevels`."""
    return TokenTree([root, *tokens], [-1, *(1 + parent for parent in parents)], origins=_WORD, scores=[None, *logp])
