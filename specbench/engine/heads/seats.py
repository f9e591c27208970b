"""State of each sequence that drafts with a head, and the numbers that the device needs for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specbench.decoding import TokenTree

FIGURES = 4  # numbers per slot before its tokens: length, new rows, last new token, whether it follows the step


@dataclass
class Seat:
    """A sequence that drafts. ``length`` rows are in the cache; new rows are in the buffers until the next round."""

    length: int = 0
    new: list[int] = field(default_factory=list)  # tokens of the new rows
    known: bool = False  # the sequence has the same slot in the target
    lazy: bool = False  # the method may not need the round after the next step
    kept: list[tuple[Sequence[int], Tensor]] = field(default_factory=list)  # (tokens, features) of rows read on demand
    followed: bool = False  # a round that reads its new rows from the target's step was launched
    drafted: bool = False  # draft rows are in the scratch cells after the text
    outcome: Tensor | None = None  # result of the last round, until it is fetched

    def settle(self, new: int, outcome: Tensor) -> None:
        """Record the outcome of a finished round, which stored ``new`` rows of the text."""
        self.length, self.new, self.followed = self.length + new, [], False
        self.drafted, self.outcome = True, outcome


class Seats:
    """The seat of each occupied slot; ``new_rows`` and ``draft_rows``: most rows of a round."""

    def __init__(self, slots: int, new_rows: int, draft_rows: int) -> None:
        self._seats: list[Seat | None] = [None] * slots
        self._new_rows, self._draft_rows = new_rows, draft_rows

    def __len__(self) -> int:
        return len(self._seats)

    def __getitem__(self, slot: int) -> Seat:
        seat = self._seats[slot]
        if seat is None:
            raise ValueError(f"slot {slot} is free")
        return seat

    def open(self, slot: int | None = None) -> int:
        """Occupy the sequence's slot in the target, so that rounds can follow its steps, or the lowest free slot."""
        place = self._seats.index(None) if slot is None else slot
        if self._seats[place] is not None:
            raise ValueError(f"slot {place} of this head pass is occupied")
        self._seats[place] = Seat(known=slot is not None)
        return place

    def close(self, slot: int) -> None:
        """Release a slot; the next sequence overwrites its cells."""
        self._seats[slot] = None

    def length(self, slot: int) -> int:
        """Number of rows of a slot's text so far, new rows included."""
        seat = self[slot]
        return seat.length + len(seat.new) + sum(len(tokens) for tokens, _ in seat.kept)

    def hold(self, slot: int) -> None:
        """Read the rows of the next step only on demand: the head does not draft now, and may not draft after it."""
        self[slot].lazy = True

    def occupied(self) -> Iterator[tuple[int, Seat]]:
        """Yield occupied slots with their seats."""
        return ((slot, seat) for slot, seat in enumerate(self._seats) if seat is not None)

    def waiting(self) -> list[int]:
        """Slots with new rows."""
        return [slot for slot, seat in self.occupied() if seat.new]

    def follows(self, slot: int, tree: TokenTree) -> bool:
        """Whether a sequence's next round needs only the results of the step over ``tree``."""
        seat = self._seats[slot] if slot < len(self._seats) else None
        if seat is None or seat.lazy or not seat.known:
            return False
        return seat.length > 0 and not (seat.new or seat.kept) and tree.depth < self._new_rows

    def columns(self, slots: int) -> list[list[int]]:
        """Numbers that the device needs for each of the first ``slots`` slots."""
        return [self._column(seat) for seat in self._seats[:slots]]

    def _column(self, seat: Seat | None) -> list[int]:
        if seat is None:
            return [0] * (FIGURES + self._new_rows)
        # A slot without new rows writes to scratch cells after its text and drafts.
        length = seat.length + (self._draft_rows if seat.drafted else 0)
        filling = [0] * (self._new_rows - len(seat.new))
        return [length, len(seat.new), seat.new[-1] if seat.new else 0, 0, *seat.new, *filling]
