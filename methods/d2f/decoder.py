"""Discrete diffusion forcing: blocks of masks in a pipeline (Wang et al. 2025, arXiv 2508.09192).

The prompt is one block; blocks of equal size follow it. A row sees its whole block and the blocks before it, in
whatever state these are, so a finished block can be cached once the blocks before it are finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from specbench.decoding import (
    Context,
    Fill,
    FillOptions,
    MaskedDecoder,
    Prediction,
    Target,
    best_of,
    option,
    shift_of,
    shift_option,
)


class Options(FillOptions):
    """Options of D2F, with the names of its released code."""

    block_size: int = option(32, "n", help="tokens of a block", ge=1, le=256)
    block_add_threshold: float = option(
        0.1, help="share of the newest block that is filled before another one is added", ge=0, le=1
    )
    decoded_token_threshold: float = option(
        0.95, help="share of a block that is filled before every pass must fill a position of the next one", ge=0, le=1
    )
    skip_threshold: float = option(0.9, "t", help="probability above which a prediction is kept", ge=0, le=1)
    shift: bool | None = shift_option()


class State(Enum):
    """State of a block: with masks, without masks, in the cache."""

    ACTIVE = auto()
    FINISHED = auto()
    STORED = auto()


@dataclass
class Block:
    """Positions ``begin`` to before ``end``.

    ``leads``: every pass fills at least one of its positions.
    """

    begin: int
    end: int
    state: State = State.ACTIVE
    leads: bool = False


class Decoder(MaskedDecoder):
    """Fill all active blocks with the predictions of one pass."""

    def __init__(self, options: Options, context: Context) -> None:
        (mask, self.shift) = context.shared
        super().__init__(mask)
        self._options, self._stops = options, context.stops
        self._most = -(-context.budget // options.block_size) or None
        self._blocks: list[Block] = []
        self._ended = False  # whether a stop token was written
        self._edge: dict[int, Prediction] = {}  # prediction for the first position after the cached ones

    @staticmethod
    def max_rows(options: Options) -> int:
        return 4 * options.block_size

    @staticmethod
    def prepare(options: Options, target: Target) -> tuple[int, bool]:
        return target.mask_token(options.mask), shift_of(options.shift, target)

    def read(self, prompt: Sequence[int]) -> Fill:
        self.start(prompt)
        self._blocks = [Block(0, len(prompt), State.FINISHED, leads=True)]
        return self.fill()

    def fill(self) -> Fill:
        options, blocks = self._options, self._blocks
        if not self._full and self._share(blocks[-1]) >= options.block_add_threshold:
            blocks.append(Block(len(self.text), len(self.text) + options.block_size))
            self.text.extend_to(blocks[-1].end)
        for left, block in pairwise(blocks):
            block.leads = block.leads or self._share(left) >= options.decoded_token_threshold
        shown = [block for block in blocks if block.state is not State.STORED]
        begin, keep = shown[0].begin, shown[0].begin
        for block in shown:
            if block.state is State.FINISHED and block.begin == keep:
                block.state, keep = State.STORED, block.end
        first = begin or shown[0].end - 1  # of the prompt only the last row predicts
        sees = [block.end for block in shown for _ in range(block.begin, block.end)]
        return self.rows(range(begin, len(self.text)), begin, sees, len(self.text) - first, keep=keep)

    def keep(self, predicted: Mapping[int, Prediction]) -> None:
        predicted = {**self._edge, **predicted}
        finished = True
        for block in self._blocks:
            if block.state is State.STORED:
                if block.end in predicted:
                    self._edge = {block.end: predicted[block.end]}
                continue
            probability = {at: predicted[at].probability for at in self.text.masked(block.begin, block.end)}
            sure = [at for at, found in probability.items() if found > self._options.skip_threshold]
            for at in sure or (best_of(probability, 1) if block.leads else []):
                self.text.fill(at, predicted[at].token)
                self._ended = self._ended or predicted[at].token in self._stops
            finished = finished and not self.text.masked(block.begin, block.end)
            if finished:
                block.state = State.FINISHED

    @property
    def _full(self) -> bool:
        """Whether no further block is added."""
        return self._ended or (self._most is not None and len(self._blocks) > self._most)

    def _share(self, block: Block) -> float:
        """Share of a block's positions that are filled."""
        size = block.end - block.begin
        return (size - len(self.text.masked(block.begin, block.end))) / size
