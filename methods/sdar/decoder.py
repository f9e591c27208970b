"""SDAR: block diffusion in which a masked row predicts its own token (Cheng et al. 2025, arXiv 2510.06303)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from specbench.decoding import (
    BlockDecoder,
    Context,
    Fill,
    FillOptions,
    Prediction,
    above,
    best_of,
    even_shares,
    option,
)

Strategy = Literal["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]


class Options(FillOptions):
    """Options of SDAR, with the names of its released code."""

    block_size: int = option(4, "n", help="tokens of a block, as in the model's training", ge=1, le=256)
    strategy: Strategy = option(
        "low_confidence_dynamic",
        help="which predictions a pass keeps. low_confidence_dynamic: those above the threshold, at least the share of "
        "a pass; low_confidence_static: the most probable ones; sequential: the first ones; entropy_bounded: those of "
        "lowest entropy while the sum of entropies is below the bound",
    )
    steps: int = option(
        0, help="passes over a block, which decide the share of a pass; 0 is one per token", ge=0, le=256
    )
    threshold: float = option(0.9, "t", help="probability above which a prediction is kept", ge=0, le=1)
    entropy_bound: float = option(0.35, "eb", help="bound of entropy_bounded, in nats", ge=0)
    fuse: bool = option(
        False,
        help="store a finished block in the first pass of the next one, which computes the same with one pass less; "
        "not in the released code",
    )

    @model_validator(mode="after")
    def _steps_fit(self) -> Options:
        if self.steps > self.block_size:
            raise ValueError(f"steps {self.steps} are more than the {self.block_size} tokens of a block")
        return self


class Decoder(BlockDecoder):
    """Fill a block in passes over all of its rows."""

    def __init__(self, options: Options, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._shares = even_shares(options.block_size, options.steps or options.block_size)
        self._step = 0

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.block_size * (2 if options.fuse else 1)

    @staticmethod
    def entropy(options: Any) -> bool:
        return bool(options.strategy == "entropy_bounded")

    def fill(self) -> Fill:
        if self._options.fuse and not self.text.masked(self._begin, len(self.text)):
            return self.store_and_open()
        return super().fill()

    def denoise(self, begin: int, end: int) -> Fill:
        return self.of_block(range(begin, end), begin)

    def unmask(self, predicted: Mapping[int, Prediction]) -> None:
        options = self._options
        masked = self.text.masked(min(predicted), max(predicted) + 1)
        # The first block has fewer masks than passes, and earlier passes may have kept more than their share.
        share = min(self._shares[min(self._step, len(self._shares) - 1)], len(masked))
        self._step += 1
        probability = {at: predicted[at].probability for at in masked}
        if options.strategy == "sequential":
            kept = masked[:share]
        elif options.strategy == "entropy_bounded":
            kept, total = [], 0.0
            for at in best_of({at: -predicted[at].entropy for at in masked}, len(masked)):
                total += predicted[at].entropy
                if kept and total >= options.entropy_bound:
                    break
                kept.append(at)
        else:
            kept = above(probability, options.threshold) if options.strategy == "low_confidence_dynamic" else []
            kept = kept if len(kept) >= share else best_of(probability, share)
        for at in kept:
            self.text.fill(at, predicted[at].token)

    def opened(self) -> None:
        self._step = 0
