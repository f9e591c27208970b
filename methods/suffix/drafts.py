"""Drafts from a suffix tree: a path of the most frequent continuations, or the most probable ones of all."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from specbench.methods.suffix.tree import Node, SuffixTree


class Draft(NamedTuple):
    """What followed the end of a text where it occurred before.

    Attributes:
        score: sum of ``probabilities``: the accepted drafts that they promise.
        match: tokens at the end of the text that it goes by.
        tokens: shape [drafted].
        parents: index of the token that each one hangs under, -1 for the end of the text, shape [drafted].
        probabilities: of each one's whole path, by the counts, shape [drafted].
    """

    score: float
    match: int
    tokens: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]


NOTHING = Draft(0.0, 0, [], [], [])


class Limits(NamedTuple):
    """How much is drafted: ``tokens`` at most, and ``factor`` times the tokens that match plus ``offset``.

    No path is less probable than ``min_prob``; ``branching`` drafts a tree and not a path.
    """

    tokens: int
    factor: float
    offset: float
    min_prob: float
    branching: bool

    def behind(self, match: int) -> int:
        """Tokens behind a match of so many; never below 0."""
        return max(0, min(self.tokens, int(match * self.factor + self.offset + 1e-6)))


def best(tree: SuffixTree, context: Sequence[int], limits: Limits) -> Draft:
    """The draft of the highest score behind any end of ``context``; of equal ones that of the longest match."""
    found, grow = NOTHING, _tree if limits.branching else _path
    for match in range(1, len(context)):
        place = tree.find(context[-match:])
        if place is None or not (place[0].ranked or tree.behind(*place, 1)):
            break  # it occurs nowhere, or at ends of texts alone: so does all that is longer
        draft = grow(tree, *place, limits.behind(match), limits.min_prob)
        if draft.tokens and draft.score >= found.score:
            found = draft._replace(match=match)
    return found


def _path(tree: SuffixTree, node: Node, skip: int, most: int, min_prob: float) -> Draft:
    """The most frequent continuation, token by token, while it is probable enough."""
    tokens: list[int] = []
    counts: list[int] = []  # of the strings drafted; the shares of the steps multiply to their counts over the whole
    whole = node.count
    while len(tokens) < most:
        if node.ranked is None:  # occurred once
            rest = tree.behind(node, skip, most - len(tokens))
            tokens += rest
            counts += [1] * len(rest)
            break
        if not node.ranked or node.ranked[0].count / whole < min_prob:
            break
        node, skip = node.ranked[0], 0
        tokens.append(node.token)
        counts.append(node.count)
    return _draft(tokens, range(-1, len(tokens) - 1), counts, whole)


def _tree(tree: SuffixTree, node: Node, skip: int, most: int, min_prob: float) -> Draft:
    """The most probable continuations, best first; of equal ones that which was found first."""
    tokens: list[int] = []
    parents: list[int] = []
    counts: list[int] = []
    heap: list[tuple[int, int, int, Node, int, int]] = []  # (-count, when, token, node, skip, parent)
    whole, when = node.count, 0

    def found(node: Node, skip: int, parent: int) -> None:
        nonlocal when
        if node.ranked is None:
            following = [(1, token, node, skip + 1) for token in tree.behind(node, skip, 1)]
        else:
            following = [(child.count, child.token, child, 0) for child in node.ranked]
        for count, token, to, skipped in following:
            if count / whole < min_prob:
                break
            heappush(heap, (-count, when, token, to, skipped, parent))
            when += 1

    found(node, skip, -1)
    while heap and len(tokens) < most:
        negative, _, token, node, skip, parent = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        counts.append(-negative)
        found(node, skip, len(tokens) - 1)
    return _draft(tokens, parents, counts, whole)


def _draft(tokens: Sequence[int], parents: Sequence[int], counts: Sequence[int], whole: int) -> Draft:
    """A draft by its counts: a single division each, so that shares and scores that are equal are equal numbers."""
    return Draft(sum(counts) / whole, 0, tokens, parents, [count / whole for count in counts])
