"""Additive masks of dense attention, made from the rows and cells that each row may see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.engine.attention.interface import Sight, Visibility
from specbench.engine.layout import Group


class Masks:
    """Masks of one step, one for each sight and group of slots."""

    def __init__(self, visibility: Visibility) -> None:
        self._see = visibility
        self._found: dict[Any, Tensor | None] = {}

    def of_group(self, group: Group, sight: Sight, dtype: torch.dtype, capacity: int) -> Tensor | None:
        """Mask [slots, 1, rows per slot, extent]; None if a single row sees every cell of the extent."""
        key = group.rows.start, sight
        if key not in self._found:
            cells = capacity if group.extent is None else group.extent
            # A draft head's single row (not exact) may have a larger extent, whose last cells it must not see.
            if group.exact and sight.reaches(cells):
                self._found[key] = None
            else:
                self._found[key] = self._of_group(group, sight, dtype, cells)
        return self._found[key]

    def _of_group(self, group: Group, sight: Sight, dtype: torch.dtype, cells: int) -> Tensor:
        see, slots = self._see, group.slots.stop - group.slots.start
        rows = (group.rows.stop - group.rows.start) // slots
        depth = see.depth[group.rows].view(slots, rows)
        reach = see.rows[group.rows, group.rows].view(slots, rows, slots, rows)
        reach = reach.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [slots, rows, rows]
        lengths = see.lengths[group.slots].long()
        own = lengths[:, None] + torch.arange(rows, device=depth.device)
        if see.starts is None:
            return _additive(lengths, own, reach, depth, cells, sight, dtype)
        # Rows of a pass over masked positions may see fewer cells than there are rows; the others do not exist.
        return _additive(lengths, own, reach, depth, cells + rows, sight, dtype)[..., :cells]

    def of_all(self, sight: Sight, dtype: torch.dtype, capacity: int) -> Tensor:
        """Mask [S, 1, N, L] for slots that are padded to all N rows each; every padding row sees some cells."""
        key = "all", sight
        if key not in self._found:
            self._found[key] = self._of_all(sight, dtype, capacity)
        found = self._found[key]
        assert found is not None
        return found

    def _of_all(self, sight: Sight, dtype: torch.dtype, capacity: int) -> Tensor:
        see, layout, rows = self._see, self._see.layout, len(self._see.depth)
        every = torch.arange(rows, device=see.depth.device)
        exists = every < layout.count.long()[:, None]  # [S, N]
        row = (layout.first.long()[:, None] + every).clamp(max=rows - 1)
        lengths, depth = see.lengths.long(), torch.where(exists, see.depth[row], 0)
        reach = see.rows[row[:, :, None], row[:, None, :]] & exists[:, :, None] & exists[:, None, :]
        own = torch.where(exists, lengths[:, None] + every, capacity - 1)
        return _additive(lengths, own, reach, depth, capacity, sight, dtype)


def _additive(
    lengths: Tensor, own: Tensor, reach: Tensor, depth: Tensor, cells: int, sight: Sight, dtype: torch.dtype
) -> Tensor:
    """Additive mask [S, 1, Q, L] of S slots with Q rows each.

    ``lengths`` [S]: cells that all rows of a slot see; ``own`` [S, Q]: cell of each row; ``reach`` bool [S, Q, Q]: rows
    that each row sees; ``depth`` [S, Q]; ``cells``: L.
    """
    slots, rows = own.shape
    cell = torch.arange(cells, device=own.device)
    visible = (cell < lengths[:, None, None]).expand(slots, rows, cells)
    visible = visible.scatter(2, own[:, None, :].expand(-1, rows, -1), reach)
    if sight.limited:
        position = lengths[:, None] + depth
        key_position = cell.expand(slots, -1).scatter(1, own, position)
        visible = visible & (key_position[:, None, :] >= sight.earliest(position)[:, :, None])
    hidden = torch.finfo(dtype).min
    return torch.zeros(visible.shape, dtype=dtype, device=own.device).masked_fill_(~visible, hidden).unsqueeze(1)
