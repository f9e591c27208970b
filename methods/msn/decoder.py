"""TR-Jacobi, the decoding of "Make Some Noise" (Wang et al. 2024, arXiv:2406.17404, §3.3): Jacobi guesses on a tree.

The ten best tokens after each row beyond the accepted path are the next guesses, arranged as a sparse tree. A separate
path contains what followed the last tokens earlier in the text. Positions without a guess contain ahead noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal

from pydantic import AfterValidator

from specbench import decoding
from specbench.decoding import Context, JacobiChain, NgramIndex, Noise, StepResult, TokenTree, option
from specbench.methods.msn.trees import RETRIEVED, TREE, Shape

_RETRIEVE_BY = 3  # longest suffix of the text that is looked up
_RETRIEVED_LENGTH = 5


class Options(decoding.Options):
    """Options of TR-Jacobi."""

    tree: Annotated[str, AfterValidator(TREE.named)] = option(
        "mc_sim_7b_63",
        help="sparse tree of 63 nodes; a file of paths, as [[0], [1], [0, 0]] or as 0 1 00; chain: the paper's plain "
        "Jacobi, a sliding chain of guesses",
    )
    draft_length: int = option(4, "m", help="guesses of tree=chain", ge=1, le=511)
    retrieval: Literal["soft3", "pld", "off"] = option(
        "soft3", help="path from earlier text: the best match of up to 3 tokens; as prompt lookup; or none"
    )
    fill: Literal["noise", "stale_root"] = option(
        "noise", help="positions without a guess: ahead noise, or the root's own best tokens, as released"
    )
    tie: Literal["longest", "first"] = option(
        "longest",
        help="path that gives the next guesses: the longest through the accepted token, or the first, as released",
    )


class Decoder(decoding.Decoder):
    """Draft a chain or a tree, depending on the options."""

    def __init__(self, options: Options, context: Context) -> None:
        noise = Noise("context", context)
        self._drafter = _Chain(options, noise) if options.tree == "chain" else _Tree(options, noise)

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + options.draft_length if options.tree == "chain" else len(_shape(options.tree, options.retrieval))

    @staticmethod
    def top_k(options: Options) -> int:
        return 0 if options.tree == "chain" else RETRIEVED

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        return self._drafter.begin(prompt)

    def observe(self, result: StepResult) -> None:
        self._drafter.observe(result)

    def draft(self) -> TokenTree:
        return self._drafter.draft()


class _Chain:
    """§3.3 without tree and retrieval: the chain slides and never waits for a fixed point."""

    def __init__(self, options: Options, noise: Noise) -> None:
        self._noise = noise
        self._chain = JacobiChain(options.draft_length + 1, noise, sliding=True)

    def begin(self, prompt: Sequence[int]) -> TokenTree:
        self._noise.see(prompt)
        return self._chain.with_prompt(prompt[-1])

    def observe(self, result: StepResult) -> None:
        self._noise.see(result.emitted)
        self._chain.update(result)

    def draft(self) -> TokenTree:
        return self._chain.tree()


class _Tree:
    """The sparse tree over a table of guesses, with a row per position ahead and a column per rank."""

    def __init__(self, options: Options, noise: Noise) -> None:
        self._options = options
        self._noise = noise
        self._shape = _shape(options.tree, options.retrieval)
        self._text = NgramIndex(_RETRIEVE_BY)
        self._table: list[list[int | None]] = []
        self._known = self._retrieved = 0  # number of positions in the table with guesses, and with a retrieved token
        self._drafted: list[int] = []  # token of each row of the last tree

    def begin(self, prompt: Sequence[int]) -> TokenTree:
        self._see(prompt)
        self._table = self._empty()
        tree = self.draft()
        return TokenTree(tree.tokens, tree.parents, [True] + [False] * (len(tree) - 1))

    def observe(self, result: StepResult) -> None:
        assert result.top is not None
        self._see(result.emitted)
        self._table = self._empty()
        # The first row after the accepted rows is at the next root's position: the target's tokens after it are the
        # guesses for the position after the root, and so on along the path. This is the Jacobi update.
        sources = self._onward(result.emitted[:-1])
        if self._options.fill == "stale_root":
            sources = sources + [0] * (self._shape.depth + 1 - len(result.path) - len(sources))
        best = result.top[1]
        for position, row in enumerate(sources):
            self._table[position][:RETRIEVED] = best[row, :RETRIEVED].tolist()
        retrieved = self._retrieve()
        for position, token in enumerate(retrieved):
            self._table[position][RETRIEVED] = token
        self._known, self._retrieved = len(sources), len(retrieved)

    def draft(self) -> TokenTree:
        table = [self._filled(position) for position in self._table]
        self._drafted = [self._text.tokens[-1]] + [table[position][rank] for position, rank in self._shape.cells]
        origins = _origins(self._shape, self._known, self._retrieved)
        return TokenTree(self._drafted, self._shape.parents, origins=origins)

    def _onward(self, accepted: Sequence[int]) -> list[int]:
        """Rows after the accepted tokens, on the first or the longest path that begins with them."""
        depth = len(accepted) + 1
        paths = [
            path[depth:] for path in self._shape.paths if [self._drafted[row] for row in path[1:depth]] == accepted
        ]
        return max(paths, key=len) if self._options.tie == "longest" else paths[0]

    def _filled(self, position: list[int | None]) -> list[int]:
        noise = iter(self._noise.draw(position.count(None)))
        return [next(noise) if token is None else token for token in position]

    def _see(self, tokens: Sequence[int]) -> None:
        self._noise.see(tokens)
        self._text.extend(tokens)

    def _empty(self) -> list[list[int | None]]:
        return [[None] * (RETRIEVED + 1) for _ in range(self._shape.depth)]

    def _retrieve(self) -> Sequence[int]:
        """The tokens after the first occurrence of the last tokens, for the longest match."""
        text, length = self._text.tokens, _RETRIEVED_LENGTH
        if self._options.retrieval == "pld":
            for size in range(_RETRIEVE_BY, 0, -1):
                for end in self._text.before(size):
                    if end + length <= len(text):
                        return text[end : end + length]
        if self._options.retrieval == "soft3" and len(text) >= 2 * _RETRIEVE_BY:
            # A window of three tokens must lie before the last three; if no window matches, the first one is used.
            for size in range(_RETRIEVE_BY, 0, -1):
                for end in self._text.before(size):
                    if _RETRIEVE_BY <= end <= len(text) - _RETRIEVE_BY:
                        return text[end : end + length]
            return text[_RETRIEVE_BY : _RETRIEVE_BY + length]
        return []


@cache
def _origins(shape: Shape, known: int, retrieved: int) -> list[str]:
    return shape.origins(known, retrieved)


@cache
def _shape(tree: str, retrieval: str) -> Shape:
    return Shape(TREE.nodes_of(tree), 0 if retrieval == "off" else _RETRIEVED_LENGTH)
