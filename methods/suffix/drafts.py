"""Make drafts from a suffix tree: a path of the most frequent continuations, or a tree of the most probable ones."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from specbench.methods.suffix.tree import Node, SuffixTree


class Draft(NamedTuple):
    """A draft: what followed earlier occurrences of the end of a text.

    Attributes:
        score: sum of ``probabilities``, the expected number of accepted drafts.
        match: length of the matched suffix of the text.
        tokens: shape [drafted].
        parents: index of each token's parent, -1 for the end of the text, shape [drafted].
        probabilities: of each token's whole path, from the counts, shape [drafted].
    """

    score: float
    match: int
    tokens: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]


NOTHING = Draft(0.0, 0, [], [], [])


class Limits(NamedTuple):
    """Limits of a draft: at most ``tokens``, and at most ``factor`` × match + ``offset``.

    No path is less probable than ``min_prob``; ``branching`` drafts a tree instead of a path.
    """

    tokens: int
    factor: float
    offset: float
    min_prob: float
    branching: bool

    def most_after(self, match: int) -> int:
        """Most tokens after a match of that length; at least 0."""
        return max(0, min(self.tokens, int(match * self.factor + self.offset + 1e-6)))


def best(tree: SuffixTree, context: Sequence[int], limits: Limits) -> Draft:
    """The draft with the highest score after any suffix of ``context``; among equal ones, that of the longest match."""
    found, grow = NOTHING, _tree if limits.branching else _path
    for match in range(1, len(context)):
        place = tree.find(context[-match:])
        if place is None or not (place[0].ranked or tree.following(*place, 1)):
            break  # it does not occur, or only at ends of texts; the same holds for longer suffixes
        draft = grow(tree, *place, limits.most_after(match), limits.min_prob)
        if draft.tokens and draft.score >= found.score:
            found = draft._replace(match=match)
    return found


def _path(tree: SuffixTree, node: Node, skip: int, most: int, min_prob: float) -> Draft:
    """The most frequent continuation, token by token, while it is probable enough."""
    tokens: list[int] = []
    counts: list[
        int
    ] = []  # counts of the drafted strings: the shares of the steps multiply to these counts over the total
    whole = node.count
    while len(tokens) < most:
        if node.ranked is None:  # occurred once
            rest = tree.following(node, skip, most - len(tokens))
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
    """The most probable continuations, best first; among equal ones, the one found first."""
    tokens: list[int] = []
    parents: list[int] = []
    counts: list[int] = []
    heap: list[tuple[int, int, int, Node, int, int]] = []  # (-count, when, token, node, skip, parent)
    whole, when = node.count, 0

    def found(node: Node, skip: int, parent: int) -> None:
        nonlocal when
        if node.ranked is None:
            following = [(1, token, node, skip + 1) for token in tree.following(node, skip, 1)]
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
    """A draft from its counts: one division each, so that equal shares and scores are equal numbers."""
    return Draft(sum(counts) / whole, 0, tokens, parents, [count / whole for count in counts])
