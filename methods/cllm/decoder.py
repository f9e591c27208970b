"""CLLM: Jacobi decoding of a consistency-trained model, block by block (Kou et al. 2024, arXiv:2403.00835).

The decoding is Jacobi's. The paper adds the training and two figures that explain the speed (§4.3): tokens
fast-forwarded by a forward, and tokens that were right before the correct prefix reached them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from specbench import decoding
from specbench.decoding import (
    Context,
    JacobiChain,
    Kind,
    Noise,
    StepResult,
    TokenTree,
    fast_forwarded,
    option,
    settled,
    stationary,
)


class Options(decoding.Options):
    """Options of CLLM decoding."""

    block_size: int = option(
        16, "n", help="tokens of a block; use the size that the checkpoint was trained for", ge=1, le=512
    )
    init: Kind = option(
        "context", help="fresh guesses: sampled from prompt and output, from the vocabulary, or the pad token"
    )


class Decoder(decoding.Decoder):
    """Draft Jacobi's chain, and keep the states of every block."""

    def __init__(self, options: Options, context: Context) -> None:
        self._noise = Noise(options.init, context)
        self._chain = JacobiChain(options.block_size, self._noise)
        self._committed: list[int] = []  # of the current block
        self._blocks: list[list[list[int]]] = []  # the states of each block, finished ones first

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.block_size

    def begin(self, prompt: Sequence[int]) -> None:
        self._noise.see(prompt)

    def observe(self, result: StepResult) -> None:
        self._noise.see(result.emitted)
        self._committed += self._chain.tokens[: len(result.path)]
        finished = self._chain.update(result)
        if self._blocks:
            self._blocks[-1].append(self._committed + ([] if finished else self._chain.tokens))
        if finished:
            self._blocks.append([])
            self._committed = []

    def draft(self) -> TokenTree:
        return self._chain.tree()

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        blocks = []
        for number, states in enumerate(self._blocks, 1):
            size = min(kept, len(states[-1])) if states else 0
            whole = number < len(self._blocks) and size == len(states[-1])
            # A block cut by the token budget has no fixed point. If the answer ends at a stop token, so does the block.
            if size and (whole or stopped):
                blocks.append(settled([state[:size] for state in states]))
            kept -= size
        if not blocks:
            return {}
        return {
            "fast_forwarded": mean(map(fast_forwarded, blocks)),
            "stationary": mean(map(stationary, blocks)),
        }
