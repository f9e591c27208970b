"""Arrays that a step copies between host and device: one array each way.

Their layout is a function of a few numbers (:class:`Shape`), the same for eager steps and for graphs. Each field takes
a multiple of 4 entries, so that every field starts at a multiple of 16 bytes: Triton compiles a kernel anew for another
alignment of its arguments. The device is idle while the host packs, so the host writes and reads all trees of a step
together and does only a few list slices per tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specbench.decoding import COMPUTED, BadTree, Fill, FillResult, StepResult, TokenTree
from specbench.engine.block_verification import Verdict
from specbench.engine.layout import Group, Layout, groups_of

Ints = npt.NDArray[np.int32]
#: slot -> for each row of its tree a next token that replaces the computed one, or COMPUTED.
Forced = Mapping[int, Sequence[int]]

_NONE: Mapping[int, Verdict] = MappingProxyType({})
_NOTHING = repeat(None)


class Shape(NamedTuple):
    """Numbers that determine the size of a step's arrays.

    Attributes:
        rows: N, padding included.
        slots: S, number of the cache's slots.
        height: rows of an attention tile; 0 without a kernel that uses tiles.
    """

    rows: int
    slots: int
    height: int = 0

    @property
    def of_rows(self) -> int:
        """Entries of a field with one value per row, padding included."""
        return _whole(self.rows)

    @property
    def of_slots(self) -> int:
        """Entries of a field with one value per slot, padding included."""
        return _whole(self.slots)

    @property
    def width_in(self) -> int:
        """Entries of the input array."""
        return 5 * self.of_rows + 3 * self.of_slots

    @property
    def width_decided(self) -> int:
        """Entries of the output array before the top scores."""
        return 2 * self.of_rows + 2 * self.of_slots

    def width_out(self, top_k: int) -> int:
        """Entries of the output array."""
        return self.width_decided + 2 * self.rows * top_k


def _whole(entries: int) -> int:
    """Round a number of 32-bit entries up to a multiple of 16 bytes."""
    return -(-entries // 4) * 4


@dataclass(frozen=True)
class Batch:
    """The trees of a step, in the order of their slots.

    ``counts``: rows of each tree; ``first``: row of each root, by slot; ``vocabulary``: token ids must be less than
    this, 0 if unknown.
    """

    trees: Mapping[int, TokenTree]
    counts: Sequence[int]
    first: Mapping[int, int]
    rows: int
    vocabulary: int = 0

    @classmethod
    def of(cls, trees: Mapping[int, TokenTree], vocabulary: int = 0) -> Batch:
        ordered, counts, first, row = {}, [], {}, 0
        for slot in sorted(trees):
            tree = ordered[slot] = trees[slot]
            first[slot] = row
            count = len(tree.tokens)
            counts.append(count)
            row += count
        return cls(ordered, counts, first, row, vocabulary)

    @cached_property
    def proposals(self) -> dict[int, TokenTree]:
        """Trees with a proposal: the distributions that their tokens were sampled from."""
        return {slot: tree for slot, tree in self.trees.items() if tree.proposal is not None}

    def parts(self, rows: Tensor) -> Sequence[Tensor]:
        """Split ``rows`` [N, …] into one view per slot, without padding."""
        return rows[: self.rows].split_with_sizes(self.counts)

    def groups(self, lengths: Sequence[int]) -> tuple[Group, ...]:
        """Groups of slots for attention without a kernel; ``lengths``: cached tokens of all slots."""
        slots = list(self.trees)
        return groups_of(slots, self.counts, [lengths[slot] for slot in slots])

    def prompt(self, lengths: Sequence[int]) -> tuple[Group, ...]:
        """The single group of a prefill; it is causal if its tree is a chain, as the prompt's other rows are."""
        (group,), (tree,) = self.groups(lengths), self.trees.values()
        return (group._replace(causal=tree.is_chain),)


@dataclass(frozen=True)
class FillBatch:
    """The passes over masked positions of a step, in the order of their slots; fields as of :class:`Batch`."""

    passes: Mapping[int, Fill]
    counts: Sequence[int]
    first: Mapping[int, int]
    rows: int
    vocabulary: int = 0

    @classmethod
    def of(cls, passes: Mapping[int, Fill], vocabulary: int = 0) -> FillBatch:
        ordered = {slot: passes[slot] for slot in sorted(passes)}
        counts = [len(each) for each in ordered.values()]
        first = dict(zip(ordered, accumulate(counts, initial=0), strict=False))
        return cls(ordered, counts, first, sum(counts), vocabulary)

    @property
    def never(self) -> int:
        """Token id that no pass predicts, -1 for none; the passes of a step come from one method and agree."""
        found = next(iter(self.passes.values())).never
        return -1 if found is None else found

    def starts(self, slots: int) -> list[int]:
        """Cell of the first row of each slot, 0 for a slot without a pass."""
        return [self.passes[slot].start if slot in self.passes else 0 for slot in range(slots)]

    def groups(self) -> tuple[Group, ...]:
        """One group for each slot, for attention without a kernel."""
        return tuple(
            # Rows that all see the same cells need no mask.
            Group(slice(slot, slot + 1), slice(row, row + len(each)), each.most, exact=each.least == each.most)
            for (slot, each), row in zip(self.passes.items(), self.first.values(), strict=True)
        )


class Fields(NamedTuple):
    """Views of the parts of a step's input. N rows, S slots.

    A pass over masked positions has other contents in three of them: in ``parents`` the number of cells that each row
    sees, in ``accept`` its position, and in ``lengths`` the cell of each slot's first row.
    """

    tokens: Tensor  # int32 [N]
    parents: Tensor  # int32 [N], row of each row's parent; roots and padding rows are their own parents
    accept: Tensor  # int32 [N], 0 or 1
    forced: Tensor  # int32 [N], a next token that replaces the computed one, or COMPUTED
    lengths: Tensor  # int32 [S], cached tokens
    layout: Layout


def fill(
    packed: Ints,
    shape: Shape,
    batch: Batch,
    lengths: Sequence[int],
    forced: Forced | None = None,
) -> None:
    """Write the trees of a step into ``packed`` int32 [shape.width_in].

    Args:
        packed: overwritten completely, padding included.
        shape: has at least as many rows as the batch.
        lengths: cached tokens of each slot.

    Raises:
        BadTree: a token that is not in the model's vocabulary, or a parent that does not come before its child. On a
            GPU either one would be an illegal memory access, after which the process cannot use the GPU any more.
    """
    used, trees = batch.rows, batch.trees.values()
    tokens, parents, accept, instead, first, count = _rows(packed, shape, batch, lengths)
    _tokens(tokens, batch, trees)
    if used > len(trees):
        parents[:] = _joined([tree.parents for tree in trees], used)
        if len(trees) == 1:
            parents[0] = 0
        else:
            np.maximum(parents, 0, out=parents)  # the next line makes each root its own parent
            parents += first.repeat(count)
        if np.count_nonzero(parents >= _every(used)) != len(trees):  # TokenTree checked this when it was made
            raise BadTree("its tree was changed after it was made: a parent does not come before its child")
    if all(tree.accept is None for tree in trees):
        accept[:] = 1
    else:
        accept[:] = _joined([repeat(1, len(tree)) if tree.accept is None else tree.accept for tree in trees], used)
    if forced:
        _force(instead, batch, forced)


def fill_passes(packed: Ints, shape: Shape, batch: FillBatch) -> None:
    """Write passes over masked positions into ``packed`` like :func:`fill`.

    Raises:
        BadTree: a token that is not in the model's vocabulary.
    """
    passes = batch.passes.values()
    tokens, sees, positions, *_ = _rows(packed, shape, batch, batch.starts(shape.slots))
    _tokens(tokens, batch, passes)
    sees[:] = _joined([each.sees for each in passes], batch.rows)
    positions[:] = _joined([each.positions for each in passes], batch.rows)


def _rows(packed: Ints, shape: Shape, batch: Batch | FillBatch, lengths: Sequence[int]) -> tuple[Ints, ...]:
    """Write which rows belong to which slot; return views (tokens, parents, accept, forced, first, count)."""
    slots, used = shape.slots, batch.rows
    packed[:] = _blank(shape)
    by_row, by_slot = np.split(packed, [5 * shape.of_rows])
    by_row, by_slot = by_row.reshape(5, -1), by_slot.reshape(3, -1)[:, :slots]
    tokens, parents, accept, instead, slot_of = by_row[:, :used]
    starts, counts = [0] * slots, [0] * slots
    for (slot, start), each in zip(batch.first.items(), batch.counts, strict=True):
        starts[slot], counts[slot] = start, each
    by_slot[:] = starts, counts, lengths
    first, count = by_slot[:2]
    slot_of[:] = _every(slots).repeat(count)  # rows are in the order of slots
    return tokens, parents, accept, instead, first, count


def _tokens(tokens: Ints, batch: Batch | FillBatch, each: Iterable[TokenTree | Fill]) -> None:
    """Write the tokens of all rows."""
    try:
        tokens[:] = _joined([one.tokens for one in each], batch.rows)
    except (OverflowError, TypeError, ValueError) as error:
        raise BadTree(f"its tree has tokens that are not valid token ids ({error})") from None
    if batch.vocabulary:
        unsigned = tokens.view(np.uint32)  # negative ids become large
        worst = int(unsigned[0] if batch.rows == 1 else unsigned.max())
        if worst >= batch.vocabulary:
            raise BadTree(f"its tree has token {worst - (worst >> 31 << 32)}, the model has {batch.vocabulary} tokens")


def _force(instead: Ints, batch: Batch, forced: Forced) -> None:
    """Write next tokens that replace computed ones."""
    if all(len(forced.get(slot, ())) == count for slot, count in zip(batch.trees, batch.counts, strict=True)):
        instead[:] = _joined([forced[slot] for slot in batch.trees], batch.rows)
        return
    for (slot, start), count in zip(batch.first.items(), batch.counts, strict=True):
        if slot in forced:
            instead[start : start + count] = forced[slot]


def _joined(parts: Iterable[Iterable[int]], count: int) -> Ints:
    """int32 [count], all parts concatenated."""
    return np.fromiter(chain.from_iterable(parts), np.int32, count)


@lru_cache
def _every(count: int) -> Ints:
    """int32 [count], 0, 1, 2, …; cached, so callers must not write to it."""
    return np.arange(count, dtype=np.int32)


@lru_cache
def _blank(shape: Shape) -> Ints:
    """int32 [shape.width_in], the input of a step without trees; cached, so callers must not write to it."""
    blank = np.zeros(shape.width_in, dtype=np.int32)
    by_row = blank[: 5 * shape.of_rows].reshape(5, -1)
    by_row[1], by_row[3], by_row[4] = _every(shape.of_rows), COMPUTED, shape.slots
    return blank


def split(packed: Tensor, shape: Shape, groups: tuple[Group, ...] | None = None) -> Fields:
    """Return the fields of an input array on any device; ``groups`` if the host knows them."""
    by_row, by_slot = packed.split([5 * shape.of_rows, 3 * shape.of_slots])
    tokens, parents, accept, forced, slot_of = by_row.view(5, -1)[:, : shape.rows].unbind(0)
    first, count, lengths = by_slot.view(3, -1)[:, : shape.slots].unbind(0)
    layout = Layout(slot_of, first, count, shape.height, groups)
    return Fields(tokens, parents, accept, forced, lengths, layout)


def join(
    next_token: Tensor, path: Tensor, count: Tensor, bonus: Tensor, top: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Return the output array int32 [shape.width_out(k)]; the float32 scores of ``top`` are stored as int32 bits."""
    parts = []
    for part in (next_token, path, count, bonus):
        part = part.to(torch.int32)
        parts += [part, part[:1].expand(_whole(len(part)) - len(part))]
    if top is not None:
        scores, ids = top
        parts += [ids.flatten().to(torch.int32), scores.float().flatten().view(torch.int32)]
    return torch.cat([part for part in parts if len(part)])


def fill_outcome(shape: Shape, tokens: Tensor, scores: Tensor) -> Tensor:
    """Return the output array of a pass over masked positions.

    Args:
        tokens: [n], predictions of the last n of the rows.
        scores: float32 [n, 1 or 2]: their probabilities, and the entropies if they are needed.
    """
    before = shape.rows - len(tokens)
    ids = torch.nn.functional.pad(tokens[:, None].expand(scores.shape), (0, 0, before, 0))
    decided = tokens.new_zeros(shape.width_decided, dtype=torch.int32)
    bits = torch.nn.functional.pad(scores, (0, 0, before, 0)).flatten().view(torch.int32)
    return torch.cat([decided, ids.flatten().to(torch.int32), bits])


def unjoin(packed: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(next_token, path, count, bonus) of an output array, as views."""
    by_row, by_slot = packed[: shape.width_decided].split([2 * shape.of_rows, 2 * shape.of_slots])
    next_token, path = by_row.view(2, -1)[:, : shape.rows].unbind(0)
    count, bonus = by_slot.view(2, -1)[:, : shape.slots].unbind(0)
    return next_token, path, count, bonus


@dataclass(frozen=True)
class Outcome:
    """A step's output array on the host."""

    packed: Ints
    shape: Shape
    top_k: int

    def results(
        self,
        batch: Batch,
        hidden: Tensor | None = None,
        probabilities: Tensor | None = None,
        verdicts: Mapping[int, Verdict] = _NONE,
    ) -> dict[int, StepResult]:
        """Return the result of each slot."""
        shape = self.shape
        decided: list[int] = self.packed[: shape.width_decided].tolist()
        rows, counts = shape.of_rows, 2 * shape.of_rows
        kept = decided[counts : counts + shape.slots]
        bonus = decided[counts + shape.of_slots :][: shape.slots]
        for slot, verdict in verdicts.items():
            kept[slot], bonus[slot] = 1 + verdict.accepted, verdict.token
        tops = self._tops(batch) if self.top_k else _NOTHING
        features = _NOTHING if hidden is None else self._kept(batch, hidden, kept)
        shares = _NOTHING if probabilities is None else batch.parts(probabilities)
        found = {}
        for (slot, tree), first, count, top, of_path, of_rows in zip(
            batch.trees.items(), batch.first.values(), batch.counts, tops, features, shares, strict=False
        ):
            many, last = kept[slot], bonus[slot]
            path, next_tokens = decided[rows + first : rows + first + many], decided[first : first + count]
            if slot in verdicts:
                path = list(range(many))
                next_tokens[:many] = [*map(int, tree.tokens[1:many]), last]
            emitted = [last] if many == 1 else [*[int(tree.tokens[row]) for row in path[1:]], last]
            found[slot] = StepResult(emitted, path, next_tokens, top, of_path, of_rows)
        return found

    def fills(self, batch: FillBatch) -> dict[int, FillResult]:
        """Return the predictions of each slot's pass, from an array of :func:`fill_outcome`."""
        ids, scores = self.packed[self.shape.width_decided :].reshape(2, self.shape.rows, self.top_k)
        tokens, columns = ids[:, 0].tolist(), scores.view(np.float32).T.tolist()
        found = {}
        for slot, each in batch.passes.items():
            end = batch.first[slot] + len(each)
            rows = slice(end - (each.outputs or len(each)), end)
            found[slot] = FillResult(tokens[rows], *(column[rows] for column in columns))
        return found

    def _tops(self, batch: Batch) -> Iterable[tuple[Tensor, Tensor]]:
        """(scores, ids) [rows, k] of each slot."""
        ids, scores = self.packed[self.shape.width_decided :].reshape(2, self.shape.rows, self.top_k)
        copies = torch.from_numpy(scores.view(np.float32).copy()), torch.from_numpy(ids.astype(np.int64))
        return zip(*map(batch.parts, copies), strict=True)

    def _kept(self, batch: Batch, hidden: Tensor, kept: Sequence[int]) -> Sequence[Tensor]:
        """The first ``kept`` [S] rows of each slot."""
        sizes: list[int] = []
        for slot, count in zip(batch.trees, batch.counts, strict=True):
            sizes += kept[slot], count - kept[slot]
        before = len(hidden) - self.shape.rows  # rows of a prompt before the tree; then there is only one sequence
        sizes[0] += before
        return hidden[: before + batch.rows].split_with_sizes(sizes)[::2]
