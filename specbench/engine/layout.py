"""Which sequence each row of a forward belongs to.

The rows of all sequences are packed into N rows without padding between sequences, so that matrix products compute only
rows that are needed. Only attention, storing and acceptance work per sequence, and they use this layout. All of it is
data on the device: one captured step serves any trees in any slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """Adjacent slots with the same number of rows each, for an eager step whose layout the host knows.

    Attributes:
        rows: the group's rows in the forward.
        extent: first cells of a slot that some row of the group may see; None means all, and the mask hides the rest.
        causal: whether this is a single slot whose rows are known to be a chain.
        exact: whether this is a single row that sees the whole extent.
    """

    slots: slice
    rows: slice
    extent: int | None
    causal: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Layout:
    """N rows over S slots; the rows of a slot are contiguous, and padding comes last.

    Attributes:
        slot: int32 [N], slot of each row; S for padding.
        first: int32 [S], the first row of each slot.
        count: int32 [S], number of rows of each slot; may be 0.
        height: rows of one slot in a tile of the attention kernels; 0 if no kernel is used.
        groups: groups of slots, for attention without a kernel; None if the host does not know the layout.
    """

    slot: Tensor
    first: Tensor
    count: Tensor
    height: int = 0
    groups: tuple[Group, ...] | None = None

    @classmethod
    def even(cls, slots: int, rows: int, device: torch.device, *, height: int = 0) -> Layout:
        """Make a layout with ``rows`` rows for each slot, as draft heads use it."""
        every = torch.arange(slots, dtype=torch.int32, device=device)
        group = Group(slice(0, slots), slice(0, slots * rows), None)
        count = torch.full_like(every, rows)
        layout = cls(every.repeat_interleave(rows), every * rows, count, height, (group,))
        # Computed now, because the first use of the layout may be inside a capture.
        _ = layout.real, layout.owner, layout.rank
        return layout

    def seeing(self, extent: int | None) -> Layout:
        """Return this layout of one group with another ``extent``."""
        assert self.groups is not None
        (group,) = self.groups
        return self if group.extent == extent else replace(self, groups=(group._replace(extent=extent),))

    @cached_property
    def real(self) -> Tensor:
        """bool [N], whether each row is not padding."""
        return self.slot < len(self.first)

    @cached_property
    def owner(self) -> Tensor:
        """int64 [N], slot of each row; an arbitrary valid slot for padding."""
        return self.slot.long().clamp(max=len(self.first) - 1)

    @cached_property
    def rank(self) -> Tensor:
        """int64 [N], index of each row within its slot; 0 for padding."""
        every = torch.arange(len(self.slot), device=self.slot.device)
        return torch.where(self.real, every - self.first.long()[self.owner], 0)

    def of_rows(self, per_slot: Tensor) -> Tensor:
        """int64 [N], the value in ``per_slot`` [S] of each row's slot."""
        return per_slot.long()[self.owner]

    def cells(self, lengths: Tensor, capacity: int) -> Tensor:
        """int64 [N], cell of each row: after its slot's ``lengths`` [S] cached tokens; padding gets the last cell."""
        return torch.where(self.real, self.of_rows(lengths) + self.rank, capacity - 1)


def groups_of(slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int]) -> tuple[Group, ...]:
    """Group adjacent slots with equal row counts; ``slots`` are ascending, ``lengths`` are their cached tokens."""
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
