"""What crosses between host and device in a step: one array each way, in one layout for eager steps and for graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.engine.tree import StepResult, TokenTree

Ints = npt.NDArray[np.int32]

#: Entries of a row that is not forced: its next token is the sampler's.
COMPUTED = -1


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
