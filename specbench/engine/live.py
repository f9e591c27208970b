"""Trees of several slots without the padding between them: the layers see live rows only, as in a serving engine.

Slots are padded to the largest tree among them where a step needs one shape: in the cache, in attention, in acceptance.
Matrix products need none, and with many sequences they are what a step's time goes into: a method whose trees are
uneven would pay there for rows that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.attention.interface import Backend
from specbench.engine.tree import TokenTree

# Rows of padding that are cheaper than to do without: taking rows apart and together again costs time in each layer.
# On two CPU cores a step of SmolLM2 gained nothing from leaving out one row or eight, and 14 % from ten.
_CHEAP = 7


@dataclass(frozen=True)
class Live:
    """The N live rows of S slots padded to Q rows.

    Attributes:
        index: int64 [N], ``slot × Q + row`` of each, ascending.
        slots, rows: S, Q.
    """

    index: Tensor
    slots: int
    rows: int

    @classmethod
    def of(cls, batch: Sequence[TokenTree | None], rows: int, device: torch.device) -> Live | None:
        """Those of a batch; None where padding is next to nothing. A slot without a tree has none."""
        if len(batch) * rows - sum(len(tree) for tree in batch if tree) <= _CHEAP:
            return None
        index = [at * rows + row for at, tree in enumerate(batch) if tree for row in range(len(tree))]
        return cls(torch.tensor(index, device=device), len(batch), rows)

    def pack(self, padded: Tensor) -> Tensor:
        """[S, Q, …] to [1, N, …]."""
        return padded.flatten(0, 1).index_select(0, self.index)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """[1, N, …] to [S, Q, …], with zeros for padding."""
        padded = packed.new_zeros(self.slots * self.rows, *packed.shape[2:])
        return padded.index_copy_(0, self.index, packed[0]).unflatten(0, (self.slots, self.rows))

    def unpack_heads(self, packed: Tensor) -> Tensor:
        """[1, heads, N, size] to [S, heads, Q, size]."""
        return self.unpack(packed.transpose(1, 2)).transpose(1, 2)

    def around(self, attention: Backend) -> Backend:
        """Attention of padded rows for queries that are not."""

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
            return self.pack(attention(self.unpack_heads(query), key, value, scale, window))

        return attend
