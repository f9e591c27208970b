"""Seats: the sequences that draft with a head, and what the device has to know of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from specbench.decoding import TokenTree

FIGURES = 4  # of a slot, before its tokens: length, number of new rows, the last of their tokens, whether it follows


@dataclass
class Seat:
    """A sequence that drafts. ``length`` rows are in the cache; the new ones wait in the buffers after them."""

    length: int = 0
    new: list[int] = field(default_factory=list)  # tokens of the new rows
    known: bool = False  # its slot is the target's
    lazy: bool = False  # the round after the next step is not sure to be asked for
    followed: bool = False  # its round runs after the target's step, which brings as many rows as it says
    drafted: bool = False  # draft rows are in the scratch cells after the text
    outcome: Tensor | None = None  # of the last round, until it is fetched

    def settle(self, new: int, outcome: Tensor) -> None:
        """Take the outcome of a round that has run: so many new rows are text now."""
        self.length, self.new, self.followed = self.length + new, [], False
        self.drafted, self.outcome = True, outcome


class Seats:
    """One seat, or none, of each slot; ``new_rows`` and ``draft_rows`` are those of a round at most."""

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
        """Take a slot: the one that the sequence has in the target, so that rounds follow its steps, or the lowest free
        one.
        """
        place = self._seats.index(None) if slot is None else slot
        if self._seats[place] is not None:
            raise ValueError(f"slot {place} of this head pass is taken")
        self._seats[place] = Seat(known=slot is not None)
        return place

    def close(self, slot: int) -> None:
        """Give a slot back; its cells are overwritten by the next sequence."""
        self._seats[slot] = None

    def length(self, slot: int) -> int:
        """Rows of a slot's text so far."""
        return self[slot].length + len(self[slot].new)

    def hold(self, slot: int) -> None:
        """Run the round after the next step only when it is asked for: others have drafted, and may again."""
        self[slot].lazy = True

    def waiting(self) -> list[int]:
        """Slots with new rows."""
        return [slot for slot, seat in enumerate(self._seats) if seat is not None and seat.new]

    def follows(self, slot: int, tree: TokenTree) -> bool:
        """Whether all that a sequence's next round needs is what the step over ``tree`` brings."""
        seat = self._seats[slot] if slot < len(self._seats) else None
        if seat is None or seat.lazy or not seat.known:
            return False
        return seat.length > 0 and not seat.new and tree.depth < self._new_rows

    def columns(self, slots: int) -> list[list[int]]:
        """What the device has to know of each of the first slots."""
        return [self._column(seat) for seat in self._seats[:slots]]

    def _column(self, seat: Seat | None) -> list[int]:
        if seat is None:
            return [0] * (FIGURES + self._new_rows)
        # A slot that does not wait writes after its own text and drafts, where nothing is kept.
        length = seat.length + (self._draft_rows if seat.drafted else 0)
        filling = [0] * (self._new_rows - len(seat.new))
        return [length, len(seat.new), seat.new[-1] if seat.new else 0, 0, *seat.new, *filling]
