"""The post's algorithm in one continuous loop: blocks drafted ahead are kept, and rejected guesses go into a pool.

All blocks form one chain: the current block's tokens, then the tokens of the blocks drafted ahead, at their future
positions. A forward refreshes the whole chain, so a block ahead is Jacobi-updated under the drafts before it, and
becomes the current block when the block before it is finished. Recycled guesses are branches of the root.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specbench.decoding import Branches, Context, Noise, StepResult, TokenTree
from specbench.methods.jf.pool import Pool

if TYPE_CHECKING:
    from specbench.methods.jf.decoder import Options


class Blocks:
    """The chain, the sizes of its blocks, and the pool."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._noise = Noise(options.init, context)
        self._pool = Pool(options.chains - 1) if options.chains > 1 else None
        self._chain: list[int] = []  # tokens[0] is the last emitted token
        self._left: list[
            int
        ] = []  # tokens still to commit in each block, the current one first; their sum is the length of the chain
        self._fresh = 0  # tokens at the chain's end that no forward has refreshed yet
        self._branches: list[list[int]] = []  # rows of each recycled candidate of the last tree
        self._counts = {"recycled": 0, "carried": 0}

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._noise.see(prompt)
        if not self._options.prefill_draft:
            return None
        return TokenTree.chain([prompt[-1], *self._noise.draw(self._options.block_size - 1)], drafts_only=True)

    def observe(self, result: StepResult) -> None:
        self._noise.see(result.emitted)
        if self._pool:
            self._pool.see(result.emitted)
        n = self._options.block_size
        if not self._chain:  # the prefill
            self._chain = list(result.next_tokens)
            self._left = [len(self._chain)]
            if len(self._chain) < n:
                self._start(result.emitted[-1])
            return
        self._count(result.path)
        accepted, total = len(result.path), len(self._chain)
        guesses = self._refreshed(result)
        right = self._right(result)
        for _ in range(
            accepted
        ):  # commit from the front; when a block is finished, the next one becomes the current block
            self._left[0] -= 1
            if not self._left[0]:
                self._left.pop(0)
        if not self._left:
            self._start(result.emitted[-1])
            return
        self._fresh = 0
        self._chain = [result.emitted[-1], *guesses[: total - accepted - 1]]
        if self._pool:
            self._pool.reject(self._chain)
        if len(self._left) < self._options.blocks and right >= math.ceil(self._options.activation_ratio * n):
            # The last row's own next token is a guess for the first position of the block that starts after it.
            self._chain += [guesses[-1], *self._noise.draw(n - 1)]
            self._left.append(n)
            self._fresh = n - 1

    def draft(self) -> TokenTree:
        tree = Branches(self._chain[0])
        tree.add(self._chain[1:])
        if self._pool:
            real = self._chain[1 : self._left[0]]
            self._branches = [tree.add(candidate) for candidate in self._pool.candidates(self._chain[0], real)]
        return tree.tree(origins=self._origins(len(tree)))

    def measures(self) -> Mapping[str, float]:
        return self._counts

    def _start(self, verified: int) -> None:
        """A first block of fresh guesses."""
        self._fresh = self._options.block_size - 1
        self._chain = [verified, *self._noise.draw(self._fresh)]
        self._left = [len(self._chain)]

    def _origins(self, rows: int) -> list[str]:
        """Origins of the rows: the chain's by block, with noise at its end, then the branches'."""
        total, noise = len(self._chain), "block-noise" if len(self._left) > 1 else "noise"
        real = ["guess"] * self._left[0] + ["block"] * (total - self._left[0])
        return real[: total - self._fresh] + [noise] * self._fresh + ["pool"] * (rows - total)

    def _refreshed(self, result: StepResult) -> list[int]:
        """The Jacobi update of every position after the accepted path, up to the end of the chain.

        If a recycled candidate won, its rows give the next tokens; positions after its end use the draft's rows.
        """
        accepted, total = len(result.path), len(self._chain)
        rows = list(range(total))  # row 0 is the root, the chain's rows come first
        winner = next((branch for branch in self._branches if result.path[-1] in branch), None)
        if accepted > 1 and result.path[-1] >= total and winner:
            rows[1 : 1 + len(winner)] = winner
        return [result.next_tokens[row] for row in rows[accepted:total]]

    def _right(self, result: StepResult) -> int:
        """Tokens of the newest block that are committed, or right under the drafts before them."""
        n, total = self._options.block_size, len(self._chain)
        committed = n - self._left[-1]
        start = total - self._left[-1]
        if len(self._left) == 1:
            return committed + len(result.path)
        row = start
        while row < total and self._chain[row] == result.next_tokens[row - 1]:
            row += 1
        return committed + row - start

    def _count(self, path: Sequence[int]) -> None:
        self._counts["recycled"] += sum(row >= len(self._chain) for row in path)
        self._counts["carried"] += sum(self._left[0] <= row < len(self._chain) for row in path)
