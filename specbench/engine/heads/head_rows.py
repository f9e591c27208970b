"""Rows of one pass of a draft head, with the cache cells that they are stored in and that they see.

A head's cache holds each slot's text so far, followed by draft rows, which are scratch that the next round overwrites.
Attention backends need one query for every row of a tree. So when a tree grows from pass to pass, rows of earlier
passes get empty queries in attention; those rows are few, and matrix products do not compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.engine.attention.interface import Backend, LayerAttention, Sight, Visibility
from specbench.engine.cache import StaticCache
from specbench.engine.layers.pieces import PLAIN, Pieces
from specbench.engine.layout import Layout
from specbench.engine.ops import Ancestry, Ops
from specbench.engine.sampler import drawn


@dataclass(frozen=True)
class Surroundings:
    """Context that all rows of a round share.

    Attributes:
        slots: the S slots of the round, contiguous.
        extent: number of cells visible to attention; None is all, as capture requires.
        limit: most draft rows of a slot.
        chain: (S, n) -> ancestry of n rows per slot, where each row's parent is the row before it.
        even: (S, n) -> layout of n rows per slot.
        pieces: rows -> implementation of a layer's operations over them; None is torch.
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
        """Visibility for ``rows`` rows per slot after ``lengths`` [S] cells."""
        return Visibility(self.even(slots, rows).seeing(self.extent), lengths, order.depth, order.rows)


@dataclass(frozen=True)
class HeadRows:
    """Rows of one pass of a head: S slots with n rows each.

    For new rows of a text, n is the number of rows of the longest path; a slot with fewer new rows is padded at the
    end. A layer stores its keys and values and attends through :meth:`attend`. Call a transformers model with
    ``**rows.arguments()``.

    Attributes:
        tokens: integer [S, n].
        positions: integer [S, n], in the text.
        features: [S, n, size], outputs of the target's tapped layers; None for draft rows and for a head without them.
        anchor: integer [S], the last token of each text.
        numbers: float64 [S, draws], random numbers for sampling draft tokens.
    """

    tokens: Tensor
    positions: Tensor
    features: Tensor | None
    anchor: Tensor
    _around: Surroundings
    _see: Visibility
    _start: Tensor  # integer [S], cell of the first row
    _end: Tensor  # integer [S], cells of the text, new rows included
    _new: Tensor  # integer [S], number of new rows
    _parents: Tensor | None = None  # int32 [S, R], parents of the draft rows so far, these included
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
        """New rows [S, n] of texts, after ``length`` [S] stored rows; ``new`` [S] of them are not padding."""
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
        """Store a layer's keys and values [S, KV heads, n, size] of these rows; return those of all cells."""
        keys, values, layout, lengths = self.place(layer)
        self._around.ops.write(_flat(key), _flat(value), keys, values, layout, lengths)
        return keys, values

    def place(self, layer: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
        """(keys, values, layout, lengths): a layer's cache, and where these rows are stored in it."""
        keys, values = (stored[self._around.slots] for stored in self._around.cache.stored(layer))
        return keys, values, self._around.even(*self.tokens.shape), self._start

    @property
    def seen(self) -> Visibility:
        """What these rows see; in a tree it has all draft rows so far, these last."""
        return self._see

    @property  # not kept: the pieces hold the rows, and a cycle would keep the cache
    def pieces(self) -> Pieces:
        """Implementation of a layer's operations over these rows."""
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
        """Attend from these rows to their text, to their ancestors and to themselves.

        ``query``: [S, heads, n, size], rotated if the head rotates queries and keys; ``key``, ``value``: [S, KV heads,
        n, size], which are stored in the cache; ``window``: a row sees only keys less than this many positions before
        it, None is no limit. Returns [S, n, heads, value size].
        """
        attended = self.step(_flat(query), *self.store(layer, key, value), LayerAttention(scale, Sight(window)))
        return attended[0].unflatten(0, self.tokens.shape)

    @cached_property
    def step(self) -> Backend:
        """Backend of the engine for these rows: queries [1, heads, S × n, size] -> [1, S × n, heads, size]."""
        attention = self._around.backend(self._see)
        slots, rows = self.tokens.shape
        before = len(self._see.depth) // slots - rows
        if not before:
            return attention

        def attend(query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
            of_slots = query[0].unflatten(1, (slots, rows))
            empty = of_slots.new_zeros(len(of_slots), slots, before, query.shape[3])
            query = torch.cat([empty, of_slots], dim=2).flatten(1, 2)[None]
            attended = attention(query, key, value, how)
            return attended[0].unflatten(0, (slots, before + rows))[:, before:].flatten(0, 1)[None]

        return attend

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments to run these rows through a transformers causal LM with the engine's attention."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions.long(),
            "past_key_values": self,
            "use_cache": True,
            "step": _by_slots(self),
        }

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """:meth:`store` with the signature that transformers' layers call."""
        return self.store(layer_idx, key, value)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return 0: models call this to make their own position ids, and position ids are always passed here."""
        return 0

    # ------------------------------------------------------------------ from rows to rows

    def last(self, outputs: Tensor) -> Tensor:
        """Select the output of each text's last token, [S, 1, …], from those of its new rows [S, n, …]."""
        at = (self._new.long() - 1).clamp(min=0).view(-1, *[1] * (outputs.dim() - 1))
        return outputs.gather(1, at.expand(-1, 1, *outputs.shape[2:]))

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Find the best draft tokens for each row of ``scores`` [..., V].

        Returns (log-probabilities float32 [..., count] over all V tokens, ids).
        """
        return self._around.ops.best(scores, count)

    def drawn(self, probabilities: Tensor, place: int) -> Tensor:
        """Sample a draft token for each text, int64 [S], from ``probabilities`` [S, V], for block verification.

        ``place``: index of the draft token in its block.
        """
        assert self.numbers is not None, "a head pass samples at most as many draft tokens as it was made for"
        return drawn(probabilities, self.numbers[:, place])

    def block(self, tokens: Tensor, *, look_ahead: bool = False) -> HeadRows:
        """Return rows after the text that one pass computes together.

        ``look_ahead``: whether each row sees the whole block instead of only the rows before it.
        """
        slots, rows = tokens.shape
        self._check(rows)
        end, around = self._end, self._around
        order = around.chain(slots, rows)
        see = around.seen(slots, rows, end, order)
        if look_ahead:
            # Backends may rely on parents coming before children, so a tree row cannot see a later row. Therefore the
            # block's cells count as text, and its rows do not see each other as tree rows.
            none = Ancestry(torch.zeros_like(order.depth), torch.zeros_like(order.rows))
            see = around.seen(slots, rows, end + rows, none)
        positions = end[:, None] + order.depth.view(slots, rows)
        return replace(self, tokens=tokens, positions=positions, features=None, _see=see, _start=end, _parents=None)

    def branch(self, tokens: Tensor, parents: Tensor | None = None) -> HeadRows:
        """Return draft rows of the next pass, after those of earlier passes.

        ``parents``: [S, n], the draft row that is each row's parent, counted from the first pass on; None makes each
        row a child of the text's last token. A parent must be from an earlier pass.
        """
        slots, rows = tokens.shape
        before = 0 if self._parents is None else self._parents.shape[1]
        self._check(before + rows)
        if parents is None:  # a root is its own parent
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

    @property
    def slots(self) -> slice:
        """The slots that these rows belong to, of all slots of a run."""
        return self._around.slots

    @property
    def count(self) -> Tensor:
        """Integer [S], the number of each text's new rows that are not padding."""
        return self._new

    def again(self, most: int) -> tuple[HeadRows, Tensor]:
        """Return the new rows [S, n + most] together with up to ``most`` rows before them, and int64 [S] how many.

        A layer overwrites the keys and values of those rows. The result's tokens are zeros: the caller has them.
        """
        back = self._start.long().clamp(max=most)
        slots, rows = self.tokens.shape
        rows += most
        extent, start = self._around.extent, self._start - back.to(self._start.dtype)
        around = replace(self._around, extent=None if extent is None else extent + most)
        order = around.chain(slots, rows)
        made = replace(
            self,
            tokens=self.tokens.new_zeros(slots, rows),
            positions=start[:, None] + order.depth.view(slots, rows),
            features=None,
            _around=around,
            _see=around.seen(slots, rows, start, order),
            _start=start,
            _new=self._new + back.to(self._new.dtype),
        )
        return made, back

    def _check(self, rows: int) -> None:
        if rows > self._around.limit:
            raise ValueError(f"this head pass was made for {self._around.limit} draft rows, not {rows}")


def _by_slots(rows: HeadRows) -> Backend:
    """:attr:`HeadRows.step` for a transformers model, whose queries are [S, heads, n, size]."""

    def attend(query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        return rows.step(_flat(query), key, value, how)[0].unflatten(0, rows.tokens.shape)

    return attend


def _flat(rows: Tensor) -> Tensor:
    """Reshape [S, heads, n, size] to the engine's [1, heads, S × n, size]; a view if it is a linear layer's output."""
    return rows.transpose(0, 1).flatten(1, 2)[None]
