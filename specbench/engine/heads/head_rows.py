"""Head rows: what a draft head computes at a time, with the cells that its rows are stored in and those that they see.

A head's cache of a slot holds the text so far; its drafts come after it as scratch that the next round overwrites.
Attention backends take as many queries as a tree has rows, so a tree that grows from pass to pass is attended to as a
whole, with empty queries for the rows of earlier passes: those are a few, and matrix products never see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.engine.attention.interface import Backend, Visibility
from specbench.engine.cache import StaticCache
from specbench.engine.layers.pieces import PLAIN, Pieces
from specbench.engine.layout import Layout
from specbench.engine.ops import Ancestry, Ops
from specbench.engine.sampler import drawn


@dataclass(frozen=True)
class Surroundings:
    """What all rows of a round share.

    Attributes:
        slots: the S slots of the round, contiguous.
        extent: cells visible to attention, from 0; None is all, as capture needs it.
        limit: draft rows of a slot at most.
        chain: (S, n) -> ancestry of n rows of each slot, each under the one before.
        even: (S, n) -> the layout of n rows of each slot.
        pieces: rows -> what computes a layer over them; None is torch.
    """

    cache: StaticCache
    ops: Ops
    backend: Callable[[Visibility], Backend]
    slots: slice
    extent: int | None
    limit: int
    chain: Callable[[int, int], Ancestry]
    even: Callable[[int, int], Layout]
    pieces: Callable[[HeadRows], Pieces] | None = None

    def seen(self, slots: int, rows: int, lengths: Tensor, order: Ancestry) -> Visibility:
        """What so many rows of each slot see after ``lengths`` [S]."""
        return Visibility(self.even(slots, rows).seeing(self.extent), lengths, order.depth, order.rows)


@dataclass(frozen=True)
class HeadRows:
    """Rows of one pass of a head: S slots, n rows of each.

    New rows of the text are as many as the longest path; where a slot has fewer, what comes after them fills up. A
    layer stores its keys and values here and attends through :meth:`attend`. A transformers model takes these rows as
    ``**rows.arguments()``.

    Attributes:
        tokens: integer [S, n].
        positions: integer [S, n], in the text.
        features: [S, n, size] what the target's tapped layers put out; None of drafts and of a head that reads none.
        anchor: integer [S], the last token of each text.
        numbers: float64 [S, draws] by which drafts are drawn; None where none are.
    """

    tokens: Tensor
    positions: Tensor
    features: Tensor | None
    anchor: Tensor
    _around: Surroundings
    _see: Visibility
    _start: Tensor  # integer [S], cell of the first row
    _end: Tensor  # integer [S], cells of the text, its new rows included
    _new: Tensor  # integer [S], its new rows
    _parents: Tensor | None = None  # int32 [S, R], of the draft rows up to these
    numbers: Tensor | None = None

    @classmethod
    def of_text(
        cls,
        around: Surroundings,
        order: Ancestry,
        tokens: Tensor,
        features: Tensor,
        length: Tensor,
        new: Tensor,
        anchor: Tensor,
    ) -> HeadRows:
        """New rows [S, n] of texts, after the ``length`` [S] rows that are stored; ``new`` [S] of them are real."""
        return cls(
            tokens=tokens,
            positions=length[:, None] + order.depth.view(tokens.shape),
            features=features if features.shape[2] else None,
            anchor=anchor,
            _around=around,
            _see=around.seen(tokens.shape[0], tokens.shape[1], length, order),
            _start=length,
            _end=length + new,
            _new=new,
        )

    # ------------------------------------------------------------------ inside a layer

    def store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps a layer's keys and values [S, KV heads, n, size] of these rows; returns those of all cells."""
        keys, values, layout, lengths = self.place(layer)
        self._around.ops.write(_flat(key), _flat(value), keys, values, layout, lengths)
        return keys, values

    def place(self, layer: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
        """(keys, values, layout, lengths): a layer's cache, and where these rows are stored in it."""
        keys, values = (stored[self._around.slots] for stored in self._around.cache.stored(layer))
        return keys, values, self._around.even(*self.tokens.shape), self._start

    @cached_property
    def pieces(self) -> Pieces:
        """What computes a layer over these rows."""
        return self._around.pieces(self) if self._around.pieces else PLAIN

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attention of these rows to their text and to the rows that they hang under, themselves included.

        ``query``: [S, heads, n, size], rotated where the head does that, as keys are; ``key``, ``value``: [S, KV heads,
        n, size], which are stored; ``window``: a row sees only what is less than so many positions before it, None is
        no limit. Returns [S, n, heads, value size].
        """
        attended = self.step(_flat(query), *self.store(layer, key, value), scale, window)
        return attended[0].unflatten(0, self.tokens.shape)

    @cached_property
    def step(self) -> Backend:
        """Attention [1, S × n, heads, size] of these rows' queries [1, heads, S × n, size], as a step of the engine."""
        attention = self._around.backend(self._see)
        slots, rows = self.tokens.shape
        before = len(self._see.depth) // slots - rows
        if not before:
            return attention

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
            of_slots = query[0].unflatten(1, (slots, rows))
            empty = of_slots.new_zeros(len(of_slots), slots, before, query.shape[3])
            query = torch.cat([empty, of_slots], dim=2).flatten(1, 2)[None]
            attended = attention(query, key, value, scale, window)
            return attended[0].unflatten(0, (slots, before + rows))[:, before:].flatten(0, 1)[None]

        return attend

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of a transformers causal LM whose attention is the engine's, for these rows."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions.long(),
            "past_key_values": self,
            "use_cache": True,
            "step": _by_slots(self),
        }

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """:meth:`store`, as transformers' layers call it."""
        return self.store(layer_idx, key, value)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Asked by models that make their own position ids; ours always come with the call."""
        return 0

    # ------------------------------------------------------------------ from rows to rows

    def last(self, outputs: Tensor) -> Tensor:
        """The output of each text's last token, [S, 1, …], of those of its new rows [S, n, …]."""
        at = (self._new.long() - 1).clamp(min=0).view(-1, *[1] * (outputs.dim() - 1))
        return outputs.gather(1, at.expand(-1, 1, *outputs.shape[2:]))

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The best drafts after each row of ``scores`` [..., V]: (log-probabilities float32 [..., count] over all V,
        ids).
        """
        return self._around.ops.best(scores, count)

    def drawn(self, probabilities: Tensor, place: int) -> Tensor:
        """A draft of each text, int64 [S], drawn from ``probabilities`` [S, V] for block verification; ``place``: which
        draft of the block it is, from 0.
        """
        assert self.numbers is not None, "a head pass draws as many drafts as it was made for"
        return drawn(probabilities, self.numbers[:, place])

    def block(self, tokens: Tensor, *, look_ahead: bool = False) -> HeadRows:
        """Rows after the text that one pass computes together.

        ``look_ahead``: each row sees all of the block, and not only the rows before it.
        """
        slots, rows = tokens.shape
        self._check(rows)
        end, around = self._end, self._around
        order = around.chain(slots, rows)
        see = around.seen(slots, rows, end, order)
        if look_ahead:
            # Backends may rely on parents coming before children, so a row of a tree never sees a later one. The
            # block's own cells are therefore counted as text, and its rows as rows that see none.
            none = Ancestry(torch.zeros_like(order.depth), torch.zeros_like(order.rows))
            see = around.seen(slots, rows, end + rows, none)
        positions = end[:, None] + order.depth.view(slots, rows)
        return replace(self, tokens=tokens, positions=positions, features=None, _see=see, _start=end, _parents=None)

    def branch(self, tokens: Tensor, parents: Tensor | None = None) -> HeadRows:
        """Draft rows of the next pass, after those of the passes before it.

        ``parents``: [S, n], the draft row that each hangs under, counted from the first pass on; None hangs them under
        the end of the text. Rows of one pass are not each other's parents.
        """
        slots, rows = tokens.shape
        before = 0 if self._parents is None else self._parents.shape[1]
        self._check(before + rows)
        if parents is None:  # a root names itself
            own = torch.arange(before, before + rows, dtype=torch.int32, device=tokens.device)
            parents = own.expand(slots, -1)
        known = [] if self._parents is None else [self._parents]
        tree = torch.cat([*known, parents.to(torch.int32)], dim=1)
        around, total = self._around, before + rows
        layout = around.even(slots, total)
        order = around.ops.ancestry((tree + layout.first[:, None]).flatten(), layout)
        return replace(
            self,
            tokens=tokens,
            positions=self._end[:, None] + order.depth.view(slots, total)[:, before:],
            features=None,
            _see=around.seen(slots, total, self._end, order),
            _start=self._end + before,
            _parents=tree,
        )

    def _check(self, rows: int) -> None:
        if rows > self._around.limit:
            raise ValueError(f"this head pass was made for {self._around.limit} draft rows, not {rows}")


def _by_slots(rows: HeadRows) -> Backend:
    """:attr:`HeadRows.step` of what a transformers model has: queries [S, heads, n, size]."""

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        return rows.step(_flat(query), key, value, scale, window)[0].unflatten(0, rows.tokens.shape)

    return attend


def _flat(rows: Tensor) -> Tensor:
    """[S, heads, n, size] as the engine has rows, [1, heads, S × n, size]; a view of what a linear layer made."""
    return rows.transpose(0, 1).flatten(1, 2)[None]
