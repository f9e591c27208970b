"""Fast-dLLM v2: block diffusion with an autoregressive model's shifted predictions (Wu et al. 2025, arXiv 2509.26328).

The masked positions of a block are filled sub-block by sub-block. The pass that stores a finished block also predicts
the first token of the next one, as an autoregressive step would.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import model_validator

from specbench.decoding import BlockDecoder, Context, Fill, FillOptions, Prediction, above, option


class Options(FillOptions):
    """Options of Fast-dLLM v2."""

    block_size: int = option(32, "n", help="tokens of a block, as in the model's training", ge=1, le=256)
    sub_block: int = option(
        8, "small", help="tokens of a sub-block, which is filled before the next one; at most a block", ge=1, le=256
    )
    threshold: float = option(
        0.9, "t", help="a prediction is kept if its probability is above this; the best one always is", ge=0, le=1
    )
    block_cache: bool = option(
        False,
        help="after the first pass of a sub-block run only its rows, which see the rest of the block as it was then: "
        "fewer rows, and an approximation",
    )

    @model_validator(mode="after")
    def _whole_sub_blocks(self) -> Options:
        if self.block_size % self.part:
            raise ValueError(f"block_size {self.block_size} must be a multiple of sub_block {self.sub_block}")
        return self

    @property
    def part(self) -> int:
        """Tokens of a sub-block."""
        return min(self.sub_block, self.block_size)


class Decoder(BlockDecoder):
    """Fill the sub-blocks of a block from left to right."""

    shift = True

    def __init__(self, options: Options, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._first = 0  # of the current sub-block
        self._cached = False  # whether the sub-block's rows are the last ones in the cache

    def denoise(self, begin: int, end: int) -> Fill:
        size, caches = self._options.part, self._options.block_cache
        first = begin + (self.text.masked(begin, end)[0] - begin) // size * size
        stop, before = first + size, min(1, first - begin)  # the row before the sub-block predicts its first token
        if first != self._first or self.text.masked(first, first + 1):
            self._first, self._cached = first, False
        if not caches:
            return self.of_block(range(begin, end), begin, end - first + before)
        if self._cached:
            return self.of_block(range(first, stop), end - size)
        self._cached = True
        order = [*range(stop, end), *range(begin, stop)]
        return self.of_block(order, begin, size + before)

    def unmask(self, predicted: Mapping[int, Prediction]) -> None:
        masked = self.text.masked(self._first, self._first + self._options.part)
        for at in above({at: predicted[at].probability for at in masked}, self._options.threshold):
            self.text.fill(at, predicted[at].token)

    def opened(self) -> None:
        self._first, self._cached = self._begin, False
