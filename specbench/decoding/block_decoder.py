"""Bases of decoders that fill masked positions, and of block diffusion with an exact cache.

In block diffusion, blocks of equal size start at multiples of it, in the prompt too. A row sees its whole block and all
blocks before it, so finished blocks are cached as they are. The prompt's last, incomplete block is the beginning of the
first block that is filled.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specbench.common import Options, option
from specbench.decoding.fill import Fill, FillDecoder, FillResult
from specbench.decoding.masked_text import MaskedText, block_ends
from specbench.decoding.protocol import Context, Target


class FillOptions(Options):
    """Options of every method that fills masked positions."""

    mask: int | None = option(None, help="id of the mask token; default is the one that the model names", ge=0)


class Prediction(NamedTuple):
    """A row's prediction; ``entropy`` in nats, 0 if the method does not need it."""

    token: int
    probability: float
    entropy: float = 0.0


def shift_option() -> Any:
    """Return the option ``shift`` of a method for models of both kinds."""
    return option(None, help="a row predicts the next position's token instead of its own; default is the model's way")


def shift_of(shift: bool | None, target: Target) -> bool:
    """Whether the target's rows predict the next position's token; ``shift`` is the user's choice."""
    return bool(getattr(target.model.config, "predicts_next", True)) if shift is None else shift


class MaskedDecoder(FillDecoder):
    """Base of decoders that keep a :class:`~specbench.decoding.masked_text.MaskedText`.

    Attributes:
        shift: whether a row predicts the token after its own position.
        text: prompt and answer.
    """

    shift: bool = False

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self._asked: Sequence[int] = ()  # positions that the last pass predicts
        self._passes = 0

    def start(self, prompt: Sequence[int]) -> None:
        """Begin a text."""
        self.text = MaskedText(prompt, self._mask)

    def rows(
        self,
        positions: Sequence[int],
        start: int,
        sees: Sequence[int],
        outputs: int | None = None,
        keep: int | None = None,
    ) -> Fill:
        """Return a pass over ``positions``, see :class:`~specbench.decoding.fill.Fill`."""
        self._asked = [position + self.shift for position in positions[-(outputs or len(positions)) :]]
        tokens = [self.text.tokens[position] for position in positions]
        return Fill(tokens, positions, start, sees, keep=keep, outputs=outputs, never=self._mask)

    def take(self, result: FillResult) -> Sequence[int]:
        self._passes += 1
        rows = zip(result.tokens, result.probabilities, result.entropies or [0.0] * len(result.tokens), strict=True)
        self.keep(dict(zip(self._asked, map(Prediction._make, rows), strict=True)))
        return self.text.final()

    @abstractmethod
    def keep(self, predicted: Mapping[int, Prediction]) -> None:
        """Fill masked positions of the text with some of the predictions, by position."""

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        return {"passes": self._passes / kept}


class BlockDecoder(MaskedDecoder):
    """Base of decoders with blocks at multiples of their size; ``context.shared`` is the id of the mask token.

    With ``shift``, the pass that stores a block also predicts the first token of the next one.
    """

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(context.shared)
        self._size: int = options.block_size
        self._begin = 0  # of the current block
        self._stores = False  # whether the last pass stores a block

    @staticmethod
    def max_rows(options: Any) -> int:
        return int(options.block_size)

    @staticmethod
    def prepare(options: Any, target: Target) -> int:
        return target.mask_token(options.mask)

    @abstractmethod
    def denoise(self, begin: int, end: int) -> Fill:
        """Return the next pass over the block from ``begin`` to before ``end``, which has masked positions."""

    @abstractmethod
    def unmask(self, predicted: Mapping[int, Prediction]) -> None:
        """Fill at least one masked position of the block with its prediction.

        ``predicted``: by position, of every position that the pass predicts, known ones among them.
        """

    def opened(self) -> None:
        """A new block begins."""

    def read(self, prompt: Sequence[int]) -> Fill:
        self.start(prompt)
        whole = len(prompt) // self._size * self._size
        if not whole:
            self._open()
            return self.fill()
        self._begin, self._passes = whole - self._size, -1  # the prompt's pass does not count
        return self._store(range(whole))

    def fill(self) -> Fill:
        begin, end = self._begin, self._begin + self._size
        if not self.text.masked(begin, end):
            return self._store(range(begin, end))
        self._stores = False
        return self.denoise(begin, end)

    def keep(self, predicted: Mapping[int, Prediction]) -> None:
        if not self._stores:
            self.unmask(predicted)
            return
        self._begin += self._size
        if self.shift and len(self.text) == self._begin:
            self.text.append(predicted[self._begin].token)
        self._open()

    def of_block(self, positions: Sequence[int], start: int, outputs: int | None = None) -> Fill:
        """Return a pass over ``positions`` of the current block, stored from cell ``start`` on, of which the last
        ``outputs`` predict (default: all)."""
        return self.rows(positions, start, [self._begin + self._size] * len(positions), outputs)

    def store_and_open(self) -> Fill:
        """Return a pass that stores the finished block and is the first one over the next; only without shift."""
        finished = range(self._begin, self._begin + self._size)
        self._begin, self._stores = finished.stop, False
        self._open()
        rows = range(finished.start, finished.stop + self._size)
        return self.rows(rows, rows.start, block_ends(rows, self._size), self._size, keep=finished.stop)

    def _store(self, positions: range) -> Fill:
        """The pass that stores finished blocks."""
        self._stores = True
        return self.rows(positions, positions.start, block_ends(positions, self._size), 1, keep=positions.stop)

    def _open(self) -> None:
        self.text.extend_to(self._begin + self._size)
        self.opened()
