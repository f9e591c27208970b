"""Suffix tree: how often every string of some texts occurs in them, and what followed it, most frequent first.

The tree grows by a token at a time. A string that occurs once is a leaf: what follows it is read from its text, so that
a new token touches only those ends of the text that have occurred before. That is about two or three nodes a token of
usual text; where a long passage is there a second time, every end of it has occurred before, up to ``depth`` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Text:
    """One of the texts, see :meth:`SuffixTree.extend`.

    ``ends``: nodes, no leaves, of those suffixes that occur elsewhere too.
    """

    __slots__ = ("ends", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[Node] = []


class Node:
    """A string of the texts, named by its last token.

    Attributes:
        depth: tokens of the string.
        count: how often it occurs, at the end of a text too.
        ranked: the strings that are longer by a token, most frequent first; None for a leaf.
        text, at: of a leaf: it is followed by ``text.tokens[at:]``.
    """

    __slots__ = ("at", "count", "depth", "next", "ranked", "text", "token")

    def __init__(self, token: int, depth: int, text: Text, at: int) -> None:
        self.token, self.depth, self.count = token, depth, 1
        self.text, self.at = text, at
        self.ranked: list[Node] | None = None
        self.next: dict[int, Node] = {}

    def add(self, child: Node) -> None:
        """A string that occurs for the first time stands last."""
        assert self.ranked is not None
        self.next[child.token] = child
        self.ranked.append(child)

    def rise(self, child: Node) -> None:
        """Counts a child once more.

        One that draws level with the child before it goes to the front of those that it is level with; one that draws
        away from its equals goes to their front (Arctic Inference, ``_increment_count``).
        """
        ranked = self.ranked
        assert ranked is not None
        at = ranked.index(child) if ranked[0] is not child else 0
        if at and ranked[at - 1].count <= child.count + 1:
            level = ranked[at - 1].count
            to = at - 1
            while to and ranked[to - 1].count == level:
                to -= 1
            del ranked[at]
            ranked.insert(to, child)
        child.count += 1

    def fall(self, child: Node) -> None:
        """Counts a child once less; it stands behind its equals of before, and goes when nothing is left of it."""
        ranked = self.ranked
        assert ranked is not None
        at = to = ranked.index(child)
        while to + 1 < len(ranked) and ranked[to + 1].count == child.count:
            to += 1
        del ranked[at]
        child.count -= 1
        if child.count:
            ranked.insert(to, child)
        else:
            del self.next[child.token]


class SuffixTree:
    """All strings of up to ``depth`` tokens of some texts."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # No string, so all of them follow it: never ranked, as nothing is drafted from it.
        self._first: dict[int, Node] = {}

    def extend(self, text: Text, tokens: Iterable[int]) -> None:
        """Appends tokens to a text, which may be a new one."""
        for token in tokens:
            text.tokens.append(token)
            size, ends, going = len(text.tokens), text.ends, []
            first = self._first.get(token)
            if first is None:
                self._first[token] = Node(token, 1, text, size)
            else:
                self._open(first)
                first.count += 1
                going.append(first)
            for end in ends:
                if end.depth == self._depth:
                    continue
                child = end.next.get(token)
                if child is None:
                    end.add(Node(token, end.depth + 1, text, size))
                else:
                    self._open(child)
                    end.rise(child)
                    going.append(child)
            text.ends = going

    def remove(self, text: Text) -> None:
        """Takes a text out; it is not extended after that."""
        tokens, text.ends = text.tokens, []
        for start in range(len(tokens)):
            node = self._first[tokens[start]]
            if node.count == 1:
                del self._first[node.token]
                continue
            node.count -= 1
            for token in tokens[start + 1 : start + self._depth]:
                child = node.next[token]
                node.fall(child)
                if not child.count:  # with all below it
                    break
                node = child

    def find(self, tokens: Sequence[int]) -> tuple[Node, int] | None:
        """Where a string stands.

        Returns its node; or the leaf on the way to it, and how many of its tokens lie beyond that one; None where it
        does not occur.
        """
        node = self._first.get(tokens[0])
        for at in range(1, len(tokens)):
            if node is None:
                return None
            if node.ranked is None:
                rest = list(tokens[at:])
                return (node, len(rest)) if self.behind(node, 0, len(rest)) == rest else None
            node = node.next.get(tokens[at])
        return None if node is None else (node, 0)

    def behind(self, leaf: Node, skip: int, most: int) -> list[int]:
        """What follows a leaf after so many tokens: at most so many, and none beyond the tree's depth."""
        start = leaf.at + skip
        return leaf.text.tokens[start : min(start + most, leaf.at + self._depth - leaf.depth)]

    def _open(self, node: Node) -> None:
        """Makes an inner node of a leaf: its string occurs a second time."""
        if node.ranked is not None:
            return
        node.ranked = []
        text, at = node.text, node.at
        if at < len(text.tokens):
            if node.depth < self._depth:
                node.add(Node(text.tokens[at], node.depth + 1, text, at + 1))
        else:  # another text that grows still, and ends here so far: from now on it has to say how it goes on
            text.ends.append(node)
