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


#: Shares of counts and sums of them that are equal differ by rounding errors alone, which are far smaller; those that
#: are not differ by more.
_EQUAL = 1e-9

NOTHING = Draft(0.0, 0, [], [], [])


class Limits(NamedTuple):
    """How much is drafted.

    Attributes:
        tokens: at most.
        factor, offset: at most ``factor`` times the tokens that match, and ``offset``.
        min_prob: no path is less probable.
        branching: drafts a tree and not a path.
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
        if draft.tokens and draft.score >= found.score - _EQUAL:
            found = draft._replace(match=match)
    return found


def _path(tree: SuffixTree, node: Node, skip: int, most: int, min_prob: float) -> Draft:
    """The most frequent continuation, token by token, while it is probable enough."""
    tokens: list[int] = []
    path: list[float] = []
    probability = 1.0
    while len(tokens) < most:
        if node.ranked is None:  # occurred once
            rest = tree.behind(node, skip, most - len(tokens))
            tokens += rest
            path += [probability] * len(rest)
            break
        if not node.ranked:
            break
        child = node.ranked[0]
        probability = probability * child.count / node.count
        if probability < min_prob - _EQUAL:
            break
        tokens.append(child.token)
        path.append(probability)
        node, skip = child, 0
    return Draft(sum(path), 0, tokens, range(-1, len(tokens) - 1), path)


def _tree(tree: SuffixTree, node: Node, skip: int, most: int, min_prob: float) -> Draft:
    """The most probable continuations, best first; of equal ones that which was found first."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[float] = []
    # (-probability but for its rounding errors, when, probability, token, node, skip, parent)
    heap: list[tuple[float, int, float, int, Node, int, int]] = []
    when = 0

    def found(node: Node, skip: int, probability: float, parent: int) -> None:
        nonlocal when
        if node.ranked is None:
            following = [(token, node, skip + 1, probability) for token in tree.behind(node, skip, 1)]
        else:
            following = [(child.token, child, 0, probability * child.count / node.count) for child in node.ranked]
        for token, to, skipped, likely in following:
            if likely < min_prob - _EQUAL:
                break
            heappush(heap, (-round(likely, 9), when, likely, token, to, skipped, parent))
            when += 1

    found(node, skip, 1.0, -1)
    while heap and len(tokens) < most:
        _, _, probability, token, node, skip, parent = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        path.append(probability)
        found(node, skip, probability, len(tokens) - 1)
    return Draft(sum(path), 0, tokens, parents, path)


def better(one: Draft, other: Draft) -> bool:
    """Whether one promises more than the other, by more than rounding errors."""
    return one.score > other.score + _EQUAL
