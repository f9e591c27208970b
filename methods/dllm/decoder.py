"""Masked diffusion with models that see the whole text: LLaDA (Nie et al. 2025), Dream (Ye et al. 2025).

The answer's positions are masked at first, and filled block by block. The caches are those of Fast-dLLM (Wu et al.
2025, arXiv 2505.22618, §3.2): approximations, because a cached row saw the text as it was then. Thresholds are
Fast-dLLM's on the probability (§3.3), and dParallel's on the entropy (Chen et al. 2025, arXiv 2509.26488).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import model_validator

from specbench.decoding import (
    Context,
    Fill,
    FillOptions,
    MaskedDecoder,
    Prediction,
    Target,
    above,
    best_of,
    even_shares,
    option,
    shift_of,
    shift_option,
)


class Options(FillOptions):
    """Options of masked diffusion."""

    block_size: int = option(32, "n", help="tokens of a block, which is filled before the next one", ge=1, le=512)
    length: int = option(
        0, help="masked positions that the model sees after the prompt; 0 is the token budget, and never more", ge=0
    )
    steps: int = option(0, help="passes over a block, on a fixed schedule; 0: a threshold decides", ge=0, le=512)
    threshold: float = option(
        0.9, "t", help="a pass keeps predictions of at least this probability, or of at most this entropy", ge=0
    )
    score: Literal["confidence", "entropy"] = option(
        "confidence", help="what is compared with the threshold (entropy: dParallel)"
    )
    cache: Literal["none", "prefix", "dual"] = option(
        "none", help="after a block's first pass, run the rows from the block on (prefix) or of the block (dual)"
    )
    shift: bool | None = shift_option()

    @model_validator(mode="after")
    def _threshold_can_be_reached(self) -> Options:
        if self.score == "confidence" and self.threshold > 1:
            raise ValueError(f"threshold {self.threshold:g} is no probability; give 1 or less, or score=entropy")
        return self


class Shared(NamedTuple):
    """What the sequences of a run share."""

    mask: int
    shift: bool


class Decoder(MaskedDecoder):
    """Fill blocks after the prompt; every row sees the whole text."""

    def __init__(self, options: Options, context: Context) -> None:
        super().__init__(context.shared.mask)
        self._options, self.shift = options, context.shared.shift
        self._budget = context.budget or options.length or options.block_size
        self._begin = 0  # of the current block
        self._step = 0  # passes over it so far

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.block_size

    @classmethod
    def pass_rows(cls, options: Options, text: int) -> int:
        return options.block_size if options.cache == "dual" else text

    @staticmethod
    def entropy(options: Any) -> bool:
        return bool(options.score == "entropy")

    @staticmethod
    def prepare(options: Options, target: Target) -> Shared:
        return Shared(target.mask_token(options.mask), shift_of(options.shift, target))

    def read(self, prompt: Sequence[int]) -> Fill:
        self.start(prompt)
        self._end = len(prompt) + self._budget
        self._begin = len(prompt)
        self._extend()
        return self.fill()

    def fill(self) -> Fill:
        size, cache = self._options.block_size, self._options.cache
        if not self.text.masked(self._begin, self._begin + size):
            self._begin, self._step = self._begin + size, 0
            if self._begin >= len(self.text):
                self._extend()
        begin, end, last = self._begin, self._begin + size, len(self.text)
        block, after = range(begin, end), range(end, last)
        if self._step and cache == "dual":
            return self.rows(block, last - size, [last] * size)
        if self._step and cache == "prefix":
            return self.rows([*after, *block], begin, [last] * (last - begin), size)
        # Rows that later passes repeat come last; before them the row that predicts the block's first token.
        order = [*range(begin), *after] if cache == "prefix" else [*after, *range(begin)]
        outputs = size + (len(after) + 1 if cache == "prefix" else 1) * self.shift
        return self.rows([*order, *block], 0, [last] * last, min(outputs, last), keep=last)

    def keep(self, predicted: Mapping[int, Prediction]) -> None:
        options, begin = self._options, self._begin
        opening = not self._step and options.cache != "none"
        masked = [begin] if opening and self.shift else self.text.masked(begin, begin + options.block_size)
        for at in masked if opening and self.shift else self._chosen({at: predicted[at] for at in masked}):
            self.text.fill(at, predicted[at].token)
        self._step += 1

    def _chosen(self, predicted: Mapping[int, Prediction]) -> list[int]:
        """The positions that a pass fills."""
        options, count = self._options, len(predicted)
        if options.score == "entropy":
            scores = {at: -each.entropy for at, each in predicted.items()}
            threshold, inclusive = -options.threshold, not self.shift
        else:
            scores = {at: each.probability for at, each in predicted.items()}
            threshold, inclusive = options.threshold, True
        if not options.steps:
            return above(scores, threshold, inclusive=inclusive)
        if self._step >= options.steps - 1:
            return best_of(scores, count)
        if not self.shift:
            return best_of(scores, even_shares(options.block_size, options.steps)[self._step])
        now, then = (1 - (1 - 1e-3) * step / options.steps for step in (self._step, self._step + 1))  # Dream's times
        return best_of(scores, int(count * (1 - then / now)))

    def _extend(self) -> None:
        size, left = self._options.block_size, max(self._end - len(self.text), 1)
        length = min(self._options.length or left, left)
        self.text.extend_to(len(self.text) + -(-length // size) * size)
