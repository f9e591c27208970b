"""Packing: what crosses between host and device in a step, and which rows of it the layers see.

One array goes each way, in one layout for eager steps and for graphs. Slots are padded to the largest tree among them
where a step needs one shape: in the cache, in attention, in acceptance. Matrix products need none, and with many
sequences they are what a step's time goes into: a method whose trees are uneven would pay there for rows that nobody
asked for. So they see live rows only, as in a serving engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.decoding import StepResult, TokenTree
from specbench.decoding.tree import COMPUTED
from specbench.engine.attention.interface import Backend

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


Ints = npt.NDArray[np.int32]


class Fields(NamedTuple):
    """The parts of a step's input for S slots and Q rows, as views. Padding rows name themselves as parent."""

    tokens: Tensor  # int32 [S, Q]
    parents: Tensor  # int32 [S, Q]; root and padding name themselves
    accept: Tensor  # int32 [S, Q], 0 or 1
    forced: Tensor  # int32 [S, Q], a next token to put in place of the computed one, or COMPUTED
    lengths: Tensor  # int32 [S], cached tokens


def width_in(rows: int) -> int:
    """Entries per slot of the input array."""
    return 4 * rows + 1


def width_out(rows: int, top_k: int) -> int:
    """Entries per slot of the output array."""
    return 2 * rows + 2 + 2 * rows * top_k


def fill(
    packed: Ints,
    rows: int,
    batch: Sequence[TokenTree | None],
    lengths: Sequence[int],
    forced: Sequence[Sequence[int] | None] | None = None,
) -> None:
    """Writes the trees of a step into ``packed`` int32 [S, width_in(rows)].

    Args:
        packed: what is in it is overwritten, padding included.
        rows: Q, at least the rows of the largest tree.
        batch: tree of each slot; None is a slot that steps along as one dead row.
        lengths: cached tokens of each slot.
        forced: next token after each row of a slot's tree, or COMPUTED.
    """
    fields = packed[:, :-1].reshape(len(batch), 4, rows)  # a copy where strides forbid a view, hence written back
    fields[:, 0] = 0
    fields[:, 1] = np.arange(rows)
    fields[:, 2] = 0
    fields[:, 3] = COMPUTED
    for at, tree in enumerate(batch):
        if tree is None:
            continue
        count = len(tree)
        fields[at, 0, :count] = tree.tokens
        fields[at, 1, 1:count] = tree.parents[1:]
        fields[at, 2, :count] = True if tree.accept is None else tree.accept
        mine = forced[at] if forced else None
        if mine is not None:
            fields[at, 3, :count] = mine
    packed[:, :-1] = fields.reshape(len(batch), -1)
    packed[:, -1] = lengths


def split(packed: Tensor, rows: int) -> Fields:
    """The fields of an input array on any device."""
    tokens, parents, accept, forced = packed[:, :-1].unflatten(1, (4, rows)).unbind(1)
    return Fields(tokens, parents, accept, forced, packed[:, -1].contiguous())


def join(
    next_token: Tensor, path: Tensor, count: Tensor, bonus: Tensor, top: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The output array int32 [S, width_out]; scores of ``top`` travel as their bits."""
    parts = [next_token, path, count[:, None], bonus[:, None]]
    if top is not None:
        scores, ids = top
        parts += [ids.flatten(1), scores.float().flatten(1).view(torch.int32)]
    return torch.cat([part.to(torch.int32) for part in parts], dim=1)


@dataclass(frozen=True)
class Outcome:
    """A step's output array on the host.

    Attributes:
        packed: int32 [S, width_out(rows, top_k)].
        rows: Q.
        top_k: k of its top scores.
    """

    packed: Ints
    rows: int
    top_k: int

    def path(self, at: int) -> list[int]:
        """Accepted rows of the slot at place ``at`` of the batch, root first."""
        rows = self.rows
        taken: list[int] = self.packed[at, rows : rows + self.packed[at, 2 * rows]].tolist()
        return taken

    def result(self, at: int, tree: TokenTree, hidden: Tensor | None = None) -> StepResult:
        """What the forward decided for that slot; ``hidden`` is [S, head + Q, size] as :meth:`Program.run` has it."""
        mine, rows, count = self.packed[at], self.rows, len(tree)
        path = self.path(at)
        top = None
        if self.top_k:
            ids, scores = mine[2 * rows + 2 :].reshape(2, rows, self.top_k)[:, :count]
            top = (torch.from_numpy(scores.copy().view(np.float32)), torch.from_numpy(ids.astype(np.int64)))
        return StepResult(
            emitted=[int(tree.tokens[row]) for row in path[1:]] + [int(mine[2 * rows + 1])],
            path=path,
            next_tokens=mine[:count].tolist(),
            top=top,
            hidden=None if hidden is None else hidden[at, : hidden.shape[1] - rows + len(path)],
        )
