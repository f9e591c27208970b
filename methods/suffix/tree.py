"""A suffix tree: counts of every substring of some texts, and what followed it, most frequent first.

The tree grows token by token. A string that occurs once is a leaf; its continuation is read from its text, so a new
token changes only the suffixes of the text that occurred before. That is two or three nodes per token of usual text,
and up to ``depth`` nodes per token in a long passage that occurs a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Text:
    """One of the texts, see :meth:`SuffixTree.extend`.

    ``ends``: inner nodes of the suffixes that also occur elsewhere.
    """

    __slots__ = ("ends", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[Node] = []


class Node:
    """A substring of the texts, named by its last token.

    Attributes:
        depth: tokens of the string.
        count: how often it occurs, including at the end of a text.
        ranked: the strings longer by one token, most frequent first; None for a leaf.
        text, at: for a leaf, ``text.tokens[at:]`` follows it.
    """

    __slots__ = ("at", "count", "depth", "next", "ranked", "text", "token")

    def __init__(self, token: int, depth: int, text: Text, at: int) -> None:
        self.token, self.depth, self.count = token, depth, 1
        self.text, self.at = text, at
        self.ranked: list[Node] | None = None
        self.next: dict[int, Node] = {}

    def add(self, child: Node) -> None:
        """Add a string that occurs for the first time, in the last place."""
        assert self.ranked is not None
        self.next[child.token] = child
        self.ranked.append(child)

    def rise(self, child: Node) -> None:
        """Increase a child's count by one and move it forward in ``ranked``.

        If its new count is at least that of the child before it, it moves before all children that have the count of
        that child (Arctic Inference, ``_increment_count``).
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
        """Decrease a child's count by one; it moves after the children with its old count, and is removed at 0."""
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
    """All substrings of up to ``depth`` tokens of some texts."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # The empty string: all strings follow it; never ranked, because no draft starts from it.
        self._first: dict[int, Node] = {}

    def extend(self, text: Text, tokens: Iterable[int]) -> None:
        """Append tokens to a text, which may be new."""
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
        """Remove a text; it must not be extended after that."""
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
                if not child.count:  # removed with its subtree
                    break
                node = child

    def find(self, tokens: Sequence[int]) -> tuple[Node, int] | None:
        """Find a string.

        Returns its node; or the leaf on the way to it, and the number of tokens beyond that leaf; None if it does not
        occur.
        """
        node = self._first.get(tokens[0])
        for at in range(1, len(tokens)):
            if node is None:
                return None
            if node.ranked is None:
                rest = list(tokens[at:])
                return (node, len(rest)) if self.following(node, 0, len(rest)) == rest else None
            node = node.next.get(tokens[at])
        return None if node is None else (node, 0)

    def following(self, leaf: Node, skip: int, most: int) -> list[int]:
        """The tokens that follow a leaf after ``skip`` tokens, limited in number and by the tree's depth."""
        start = leaf.at + skip
        return leaf.text.tokens[start : min(start + most, leaf.at + self._depth - leaf.depth)]

    def _open(self, node: Node) -> None:
        """Turn a leaf into an inner node, because its string occurs a second time."""
        if node.ranked is not None:
            return
        node.ranked = []
        text, at = node.text, node.at
        if at < len(text.tokens):
            if node.depth < self._depth:
                node.add(Node(text.tokens[at], node.depth + 1, text, at + 1))
        else:  # another growing text ends here so far: from now on its continuation must be counted
            text.ends.append(node)
