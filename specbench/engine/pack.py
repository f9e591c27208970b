"""Packing: what crosses between host and device in a step, one array each way.

The layout of both is a function of a few numbers (:class:`Shape`), the same for eager steps and for graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.decoding import StepResult, TokenTree
from specbench.decoding.tree import COMPUTED
from specbench.engine.block import Verdict
from specbench.engine.layout import Group, Layout, groups_of

Ints = npt.NDArray[np.int32]

_NONE: Mapping[int, Verdict] = MappingProxyType({})


class Shape(NamedTuple):
    """What the arrays of a step are as large as.

    Attributes:
        rows: N, padding included.
        slots: S, those of the cache.
        height: rows of a tile of attention; 0 where no kernel asks for tiles.
    """

    rows: int
    slots: int
    height: int = 0

    @property
    def width_in(self) -> int:
        """Entries of the input array."""
        return 5 * self.rows + 3 * self.slots

    def width_out(self, top_k: int) -> int:
        """Entries of the output array."""
        return 2 * self.rows * (1 + top_k) + 2 * self.slots


@dataclass(frozen=True)
class Batch:
    """The trees of a step, as they lie in its rows: in the order of their slots.

    Attributes:
        trees: by slot, ascending.
        first: row of each one's root.
        rows: of all of them.
    """

    trees: Mapping[int, TokenTree]
    first: Mapping[int, int]
    rows: int

    @classmethod
    def of(cls, trees: Mapping[int, TokenTree]) -> Batch:
        ordered = dict(sorted(trees.items()))
        first, row = {}, 0
        for slot, tree in ordered.items():
            first[slot] = row
            row += len(tree)
        return cls(ordered, first, row)

    def groups(self, lengths: Sequence[int]) -> tuple[Group, ...]:
        """For attention without a kernel; ``lengths`` are the cached tokens of all slots."""
        slots = list(self.trees)
        return groups_of(slots, [len(tree) for tree in self.trees.values()], [lengths[slot] for slot in slots])

    def prompt(self, lengths: Sequence[int]) -> tuple[Group, ...]:
        """The same of a prompt's last rows, which are usually a chain as all before them."""
        (group,), (tree,) = self.groups(lengths), self.trees.values()
        return (group._replace(causal=tree.is_chain),)


class Fields(NamedTuple):
    """The parts of a step's input, as views. N rows, S slots."""

    tokens: Tensor  # int32 [N]
    parents: Tensor  # int32 [N], row of each one's parent; roots and padding name themselves
    accept: Tensor  # int32 [N], 0 or 1
    forced: Tensor  # int32 [N], a next token to put in place of the computed one, or COMPUTED
    lengths: Tensor  # int32 [S], cached tokens
    layout: Layout


def fill(
    packed: Ints,
    shape: Shape,
    batch: Batch,
    lengths: Sequence[int],
    forced: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """Writes the trees of a step into ``packed`` int32 [shape.width_in].

    Args:
        packed: what is in it is overwritten, padding included.
        shape: with room for all rows of the batch.
        batch: the trees.
        lengths: cached tokens of each slot.
        forced: by slot, next token after each row of its tree, or COMPUTED.
    """
    rows, slots = shape.rows, shape.slots
    by_row = packed[: 5 * rows].reshape(5, rows)
    tokens, parents, accept, instead, slot_of = by_row
    first, count, cached = packed[5 * rows : 5 * rows + 3 * slots].reshape(3, slots)
    tokens[batch.rows :], accept[batch.rows :], slot_of[batch.rows :] = 0, 0, slots
    parents[:] = np.arange(rows)
    instead[:] = COMPUTED
    first[:], count[:], cached[:] = 0, 0, lengths
    for slot, tree in batch.trees.items():
        start, length = batch.first[slot], len(tree)
        stop = start + length
        tokens[start:stop] = tree.tokens
        parents[start + 1 : stop] = tree.parents[1:]
        parents[start + 1 : stop] += start
        accept[start:stop] = 1 if tree.accept is None else tree.accept
        slot_of[start:stop] = slot
        first[slot], count[slot] = start, length
        if forced and slot in forced:
            instead[start:stop] = forced[slot]


def split(packed: Tensor, shape: Shape, groups: tuple[Group, ...] | None = None) -> Fields:
    """The fields of an input array on any device; ``groups`` where the host knows them."""
    rows, slots = shape.rows, shape.slots
    by_row, by_slot = packed.split([5 * rows, 3 * slots])
    tokens, parents, accept, forced, slot_of = by_row.view(5, rows).unbind(0)
    first, count, lengths = by_slot.view(3, slots).unbind(0)
    layout = Layout(slot_of, first, count, shape.height, groups)
    return Fields(tokens, parents, accept, forced, lengths, layout)


def join(
    next_token: Tensor, path: Tensor, count: Tensor, bonus: Tensor, top: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The output array int32 [shape.width_out(k)]; scores of ``top`` travel as their bits."""
    parts = [next_token, path, count, bonus]
    if top is not None:
        scores, ids = top
        parts += [ids.flatten(), scores.float().flatten().view(torch.int32)]
    return torch.cat([part.to(torch.int32) for part in parts])


@dataclass(frozen=True)
class Outcome:
    """A step's output array on the host.

    Attributes:
        packed: int32 [shape.width_out(top_k)].
        shape: of the step.
        top_k: k of its top scores.
    """

    packed: Ints
    shape: Shape
    top_k: int

    @cached_property
    def _top(self) -> tuple[npt.NDArray[np.float32], Ints]:
        """(scores, ids) [N, k]."""
        rows, slots = self.shape.rows, self.shape.slots
        ids, scores = self.packed[2 * (rows + slots) :].reshape(2, rows, self.top_k)
        return scores.view(np.float32), ids

    def results(
        self,
        batch: Batch,
        hidden: Tensor | None = None,
        probabilities: Tensor | None = None,
        verdicts: Mapping[int, Verdict] = _NONE,
    ) -> dict[int, StepResult]:
        """What the forward decided for each slot of a step.

        Args:
            batch: what was stepped.
            hidden, probabilities: as :class:`specbench.engine.step.Computed` has them.
            verdicts: on chains that were verified as blocks.
        """
        return {
            slot: self.result(slot, tree, batch.first[slot], hidden, probabilities, verdicts.get(slot))
            for slot, tree in batch.trees.items()
        }

    def result(
        self,
        slot: int,
        tree: TokenTree,
        first: int,
        hidden: Tensor | None = None,
        probabilities: Tensor | None = None,
        verdict: Verdict | None = None,
    ) -> StepResult:
        """The same of the slot whose root is row ``first``."""
        rows, slots = self.shape.rows, self.shape.slots
        stop = first + len(tree)
        kept, behind = int(self.packed[2 * rows + slot]), int(self.packed[2 * rows + slots + slot])
        path: list[int] = self.packed[rows + first : rows + first + kept].tolist()
        next_tokens: list[int] = self.packed[first:stop].tolist()
        if verdict is not None:
            kept, behind = 1 + verdict.accepted, verdict.token
            path = list(range(kept))
            next_tokens[:kept] = [*map(int, tree.tokens[1:kept]), behind]
        top = None
        if self.top_k:
            scores, ids = self._top
            top = (torch.from_numpy(scores[first:stop].copy()), torch.from_numpy(ids[first:stop].astype(np.int64)))
        if hidden is not None:
            before = len(hidden) - rows  # those of a prompt before the tree, where there is only one sequence
            hidden = hidden[first : before + first + kept]
        return StepResult(
            emitted=[int(tree.tokens[row]) for row in path[1:]] + [behind],
            path=path,
            next_tokens=next_tokens,
            top=top,
            hidden=hidden,
            probabilities=None if probabilities is None else probabilities[first:stop],
        )
