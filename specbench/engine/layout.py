"""Layout: which sequence each row of a forward belongs to.

The rows of all sequences lie one after the other, N of them and no more than there are, so that matrix products never
see rows that nobody asked for. Only attention, storing and acceptance go sequence by sequence, and this is what they
go by. Everything is data on the device: a captured step serves any trees in any slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """Neighbouring slots with equally many rows, as an eager step knows them on the host.

    Attributes:
        rows: theirs among those of the forward.
        extent: cells that can be visible to one of them, from 0; None is all, and the mask hides the rest.
        causal: of one slot, whose rows are known to be a chain.
        exact: of one row, which sees all of the extent.
    """

    slots: slice
    rows: slice
    extent: int | None
    causal: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Layout:
    """N rows over S slots; the rows of a slot lie together, and padding lies after all others.

    Attributes:
        slot: int32 [N], slot of each row; S where it is padding.
        first: int32 [S], the first row of each slot.
        count: int32 [S], rows of each slot; 0 where it has none.
        height: rows of a slot that a tile of the attention kernels takes; 0 where none is used.
        groups: of its slots, for attention without a kernel; None where the host does not know them.
    """

    slot: Tensor
    first: Tensor
    count: Tensor
    height: int = 0
    groups: tuple[Group, ...] | None = None

    @classmethod
    def even(cls, slots: int, rows: int, device: torch.device, *, height: int = 0) -> Layout:
        """As many rows for each slot: the form of a draft head's."""
        every = torch.arange(slots, dtype=torch.int32, device=device)
        group = Group(slice(0, slots), slice(0, slots * rows), None)
        count = torch.full_like(every, rows)
        layout = cls(every.repeat_interleave(rows), every * rows, count, height, (group,))
        # Computed here and now, because who keeps a layout may use it first inside a capture.
        _ = layout.real, layout.owner, layout.rank
        return layout

    def seeing(self, extent: int | None) -> Layout:
        """The same layout, of one group, where so many cells can be visible."""
        assert self.groups is not None
        (group,) = self.groups
        return self if group.extent == extent else replace(self, groups=(group._replace(extent=extent),))

    @cached_property
    def real(self) -> Tensor:
        """bool [N], rows that are not padding."""
        return self.slot < len(self.first)

    @cached_property
    def owner(self) -> Tensor:
        """int64 [N], slot of each row; some slot where it is padding."""
        return self.slot.long().clamp(max=len(self.first) - 1)

    @cached_property
    def rank(self) -> Tensor:
        """int64 [N], place of each row among those of its slot; 0 of padding."""
        every = torch.arange(len(self.slot), device=self.slot.device)
        return torch.where(self.real, every - self.first.long()[self.owner], 0)

    def of_rows(self, per_slot: Tensor) -> Tensor:
        """int64 [N], what ``per_slot`` [S] says of each row's slot."""
        return per_slot.long()[self.owner]

    def cells(self, lengths: Tensor, capacity: int) -> Tensor:
        """int64 [N], the cell of each row after its slot's ``lengths`` [S]; padding is sent to the last there is."""
        return torch.where(self.real, self.of_rows(lengths) + self.rank, capacity - 1)


def groups_of(slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int]) -> tuple[Group, ...]:
    """The groups of slots in ascending order, with their rows and the cells before these."""
    found: list[Group] = []
    row = 0
    for slot, count, length in zip(slots, counts, lengths, strict=True):
        before = found[-1] if found else None
        if before and before.slots.stop == slot and _even(before) == count:
            extent = max(before.extent or 0, length + count)
            found[-1] = Group(slice(before.slots.start, slot + 1), slice(before.rows.start, row + count), extent)
        else:
            rows = slice(row, row + count)
            found.append(Group(slice(slot, slot + 1), rows, length + count, exact=count == 1))
        row += count
    return tuple(found)


def _even(group: Group) -> int:
    return (group.rows.stop - group.rows.start) // (group.slots.stop - group.slots.start)
