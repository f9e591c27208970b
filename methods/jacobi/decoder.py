"""Jacobi decoding: a chain of guesses, all refreshed by each forward (Santilli et al. 2023, Algorithm 2, PJ/HGJ)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from specbench import decoding
from specbench.decoding import Context, JacobiChain, Kind, Noise, StepResult, TokenTree, option


class Options(decoding.Options):
    """Options of Jacobi decoding."""

    block_size: int = option(16, "n", help="tokens guessed together, the verified first one included", ge=1, le=512)
    window: Literal["block", "sliding"] = option(
        "block", help="block: finish a block, then start the next; sliding: refill to block_size after every forward"
    )
    init: Kind = option(
        "context", help="fresh guesses: sampled from prompt and output, from the vocabulary, or the pad token"
    )
    prefill_draft: bool = option(True, help="send the first guesses with the prompt: one free Jacobi update")


class Decoder(decoding.Decoder):
    """Draft the current chain."""

    def __init__(self, options: Options, context: Context) -> None:
        self._prefill_draft = options.prefill_draft
        self._noise = Noise(options.init, context)
        self._chain = JacobiChain(options.block_size, self._noise, sliding=options.window == "sliding")

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.block_size

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        self._noise.see(prompt)
        return self._chain.with_prompt(prompt[-1]) if self._prefill_draft else None

    def observe(self, result: StepResult) -> None:
        self._noise.see(result.emitted)
        self._chain.update(result)

    def draft(self) -> TokenTree:
        return self._chain.tree()
