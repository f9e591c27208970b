"""Token Recycling: the target's best candidates after a token are reused when it occurs again (Luo et al. 2024).

"Turning Trash into Treasure", arXiv:2408.08696. Every forward gives the best tokens after each row, accepted or not. A
matrix stores them under the row's token, and a static tree is filled from the matrix, depth by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator

from specbench import decoding
from specbench.decoding import Context, MethodName, Node, StepResult, TokenTree, option, retrieve_option, stop_option
from specbench.methods.recycling.trees import CANDIDATES, TREE, parents, smallest

#: Token -> its best candidates; tokens that were never an input are missing.
Matrix = dict[int, list[int]]


class Options(decoding.Options):
    """Options of Token Recycling."""

    tree: Annotated[str, AfterValidator(TREE.named)] = option(
        "2.2.2", help="static tree of 80 nodes; or a file of paths, as [[0], [1], [0, 0]] or as 0 1 00"
    )
    budget: int = option(81, "B", help="rows at most, root included: the nodes with the best ranks stay", ge=2, le=512)
    warm: bool = option(
        False, help="keep the matrix from one request to the next, as released; otherwise each request starts cold"
    )
    unknown: Literal["skip", "zero"] = option(
        "skip", help="after a token that has no candidates yet: draft nothing, or token 0 as released"
    )
    retrieve: MethodName | None = retrieve_option()
    stop: bool = stop_option()


class Decoder(decoding.Decoder):
    """Keep a matrix of its own, or with ``warm`` share one with all requests of the row."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._nodes = smallest(options.tree, options.budget)
        self._matrix: Matrix = {} if context.state is None else context.state
        self._root = 0
        self._fed: Sequence[int] = []  # token of each row in the next forward

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + len(smallest(options.tree, options.budget))

    @staticmethod
    def top_k(options: Options) -> int:
        return CANDIDATES

    @staticmethod
    def state(options: Options) -> Matrix | None:
        return {} if options.warm else None

    def begin(self, prompt: Sequence[int]) -> None:
        self._fed = prompt[-1:]

    def observe(self, result: StepResult) -> None:
        assert result.top is not None
        best = result.top[1][:, :CANDIDATES].tolist()
        self._matrix.update(zip(self._fed, best, strict=True))  # if a token has several rows, the last row is stored
        self._root = result.emitted[-1]

    def draft(self) -> TokenTree:
        tree = self._filled() if self._options.unknown == "skip" else self._full()
        self._fed = tree.tokens
        return tree

    def instead(self, tree: TokenTree) -> None:
        self._fed = tree.tokens

    def _filled(self) -> TokenTree:
        """The static tree without the subtrees of tokens that have no candidates."""
        tokens, above = [self._root], [-1]
        rows: dict[Node, int] = {(): 0}
        for node in self._nodes:
            parent = rows.get(node[:-1])
            candidates = None if parent is None else self._matrix.get(tokens[parent])
            if parent is not None and candidates is not None:
                rows[node] = len(tokens)
                tokens.append(candidates[node[-1]])
                above.append(parent)
        return TokenTree(tokens, above, origins="adjacent")

    def _full(self) -> TokenTree:
        """The whole static tree, with token 0 for unknown candidates."""
        tokens, above = [self._root], parents(self._nodes)
        none = [0] * CANDIDATES
        for node, parent in zip(self._nodes, above[1:], strict=True):
            tokens.append(self._matrix.get(tokens[parent], none)[node[-1]])
        return TokenTree(tokens, above, origins="adjacent")
