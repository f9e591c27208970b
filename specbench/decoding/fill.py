"""Define a pass over masked positions and its result, and the protocol of decoders that fill blocks with such passes.

This is the second way to write a text, next to token trees. A model of masked diffusion predicts all masked positions
of a block at once; a decoder keeps the predictions it trusts and repeats the pass until the block is full. Nothing
verifies the tokens, so the text is the decoder's own, not the one of autoregressive decoding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from specbench.decoding.protocol import Decoder
from specbench.decoding.tree import BadTree, as_integers


@dataclass(frozen=True)
class Fill:
    """One forward over some positions of a text, whose keys and values are stored in cells of the sequence's cache.

    Row i is stored in cell ``start + i`` and sees the first ``sees[i]`` cells, rows of this pass among them. The order
    of cells need not be that of positions, so a decoder may put the rows that it will repeat last. One row may see at
    most as many cells more than another as there are rows.

    Attributes:
        tokens: token ids, mask tokens included, shape [rows].
        positions: position of each row in the text, shape [rows].
        start: cell of the first row.
        sees: number of cells that each row sees, shape [rows].
        keep: number of cells that hold finished text after this pass; None leaves the number unchanged.
        outputs: number of rows, counted from the end, whose predictions the decoder needs; None is all.
        never: token id that is never predicted, usually the mask token; None allows all.

    Raises:
        ValueError: lengths or types are wrong, or a row sees more cells than there are.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    start: int
    sees: Sequence[int]
    keep: int | None = None
    outputs: int | None = None
    never: int | None = None

    def __post_init__(self) -> None:
        fields = self.__dict__
        for name in ("tokens", "positions", "sees"):
            fields[name] = as_integers(name, getattr(self, name))
        rows = len(self.tokens)
        if not rows or not rows == len(self.positions) == len(self.sees):
            raise ValueError("a pass needs at least one row, and as many positions and counts of cells as tokens")
        if min(self.positions) < 0 or self.start < 0:
            raise ValueError("cells and positions are counted from 0")
        if not 1 <= self.least <= self.most <= self.start + rows:
            raise ValueError(
                f"rows see 1 to {self.start + rows} cells, not {self.least} to {self.most}; later cells are empty"
            )
        if self.most - self.least > rows:
            raise ValueError(f"rows may see at most {rows} cells more than each other, not {self.most - self.least}")
        if self.keep is not None and not 0 <= self.keep <= self.start + rows:
            raise ValueError(f"{self.keep} cells cannot be kept of {self.start + rows}")
        if self.outputs is not None and not 1 <= self.outputs <= rows:
            raise ValueError(f"{rows} rows have no {self.outputs} outputs")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def least(self) -> int:
        """Cells that every row sees."""
        return min(self.sees)

    @cached_property
    def ordered(self) -> bool:
        """Whether row i sees at most i + 1 cells more than every row sees, as kernels expect of a tree's rows."""
        least = self.least
        return self.most == least or all(seen - least <= row + 1 for row, seen in enumerate(self.sees))

    @cached_property
    def most(self) -> int:
        """Cells that some row sees."""
        return max(self.sees)


@dataclass(frozen=True)
class FillResult:
    """Predictions of a pass for the rows at its end that the decoder asked for, as host data.

    Attributes:
        tokens: each row's most probable token, or its sample above temperature 0.
        probabilities: probability of that token, at the run's temperature (greedy: at temperature 1).
        entropies: entropy of each row's distribution in nats, if the decoder asked for it, else empty.
    """

    tokens: Sequence[int]
    probabilities: Sequence[float]
    entropies: Sequence[float] = ()


class FillDecoder(Decoder):
    """Base of decoders that fill masked blocks. One object serves one sequence.

    The calls are :meth:`read`, :meth:`take`, then :meth:`fill` and :meth:`take` until the answer ends. ``max_rows`` is
    the number of rows of the largest pass after the prompt's.
    """

    @staticmethod
    def entropy(options: Any) -> bool:
        """Return whether the decoder needs ``FillResult.entropies``."""
        return False

    @classmethod
    def pass_rows(cls, options: Any, text: int) -> int:
        """Return the rows of the largest pass over a prompt and answer of ``text`` tokens together."""
        return cls.max_rows(options)

    @abstractmethod
    def read(self, prompt: Sequence[int]) -> Fill:
        """Take the prompt and return the pass that reads it; it may have any number of rows."""

    @abstractmethod
    def fill(self) -> Fill:
        """Return the next pass. A pass of more than ``max_rows`` rows runs alone and is never captured in a graph."""

    @abstractmethod
    def take(self, result: FillResult) -> Sequence[int]:
        """Take a pass's result; return the answer's tokens that have become final, in order, maybe none."""

    def observe(self, result: Any) -> NoReturn:
        raise BadTree("this method fills blocks and has no trees to verify")

    def draft(self) -> NoReturn:
        raise BadTree("this method fills blocks and drafts no trees")
