"""Jacobi decoding: a chain of guesses, all refreshed by each forward (Santilli et al. 2023, Algorithm 2, PJ/HGJ).

A forward over the chain ``d`` gives ``g[i]``, the target's token after ``d[0..i]``. With ``m`` matches the engine
commits ``d[0..m]``; ``g[m]`` is then known to be right, and ``g[m+1:]`` are the next guesses: the Jacobi update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from specbench.decoding import Context
from specbench.engine.tree import StepResult, TokenTree
from specbench.options import Options as BaseOptions
from specbench.options import option


class Options(BaseOptions):
    """Options of Jacobi decoding."""

    block_size: int = option(16, "n", help="tokens guessed together, the verified first one included", ge=1, le=512)
    window: Literal["block", "sliding"] = option(
        "block", help="block: finish a block, then start the next; sliding: refill to block_size after every forward"
    )
    init: Literal["context", "uniform", "pad"] = option(
        "context", help="fresh guesses: drawn from prompt and output, from the vocabulary, or the pad token"
    )
    prefill_draft: bool = option(False, help="send the first guesses along with the prompt: one free Jacobi update")


class Decoder:
    """Holds the current chain; ``_chain[0]`` is always the last emitted token."""

    draft_forwards = 0

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._context = context
        self._seen: list[int] = []  # prompt and output, the pool that ``init=context`` draws from
        self._chain: list[int] = []

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.block_size

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._seen = list(prompt)
        if not self._options.prefill_draft:
            return None
        return TokenTree.chain([prompt[-1], *self._guesses(self._options.block_size - 1)], drafts_only=True)

    def observe(self, result: StepResult) -> None:
        self._seen += result.emitted
        # The Jacobi update: the token after the accepted path is verified, the ones behind it are the new guesses. The
        # last row's own next token is outside the block, except as the bonus of a path that reached it.
        accepted = len(result.path)
        if accepted == 1 and not self._chain:  # the prefill: every row gives one token of the first chain
            self._chain = list(result.next_tokens)
        else:
            self._chain = [result.emitted[-1], *result.next_tokens[accepted:-1]]
        block_done = accepted == len(result.next_tokens)
        if self._options.window == "sliding" or block_done:
            self._chain += self._guesses(self._options.block_size - len(self._chain))

    def draft(self) -> TokenTree:
        return TokenTree.chain(self._chain)

    def _guesses(self, count: int) -> list[int]:
        if self._options.init == "context":
            return self._context.rng.choices(self._seen, k=count)
        if self._options.init == "uniform":
            return [self._context.rng.randrange(self._context.vocab_size) for _ in range(count)]
        return [self._context.pad_id] * count
