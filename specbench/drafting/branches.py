"""Building a tree branch by branch."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.engine.tree import TokenTree


class Branches:
    """A tree under construction. Branches that begin alike share rows: a row less is a row less to compute.

    Args:
        root: the last emitted token.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._children: dict[tuple[int, int], int] = {}  # (parent row, token) -> row

    def graft(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Appends rows whose shape is known, none of which is ever shared; parents are rows of the whole tree."""
        self.tokens += tokens
        self.parents += parents

    def add(self, path: Sequence[int], under: int = 0, *, share: bool = True) -> list[int]:
        """Hangs a chain of tokens under a row.

        Args:
            path: its tokens, top down.
            under: row it hangs under.
            share: use rows that are there already where the tokens agree.

        Returns:
            The row of each token of ``path``.
        """
        rows = []
        for token in path:
            row = self._children.get((under, token)) if share else None
            if row is None:
                row = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(under)
                self._children.setdefault((under, token), row)
            rows.append(row)
            under = row
        return rows

    def __len__(self) -> int:
        return len(self.tokens)

    def tree(self, accept: Sequence[bool] | None = None, origins: str | Sequence[str] = "draft") -> TokenTree:
        """The tree; ``accept`` and ``origins`` as in :class:`TokenTree`."""
        return TokenTree(self.tokens, self.parents, accept, origins)
