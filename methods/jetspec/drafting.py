"""One pass of the head a round: new features in, the best tokens of every position out, one host read.

A round's features are appended to the head's own KV cache inside the pass, with the block's rows behind them as scratch
that the next round overwrites. JetSpec's graphed drafter projects its whole context again in every round and its
incremental one cannot be captured; lengths on the device give both at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specbench.common import EnvironmentRefused
from specbench.decoding.trees.marginals import Marginals
from specbench.engine import settle
from specbench.engine.attention.choice import Attentions
from specbench.engine.attention.interface import Visibility
from specbench.engine.cache import StaticCache
from specbench.engine.graphs import SLOT_BUCKETS
from specbench.engine.ops import Ops, TorchOps
from specbench.engine.products import Linears, kind_for
from specbench.methods.jetspec.head import DraftHead

CHUNK = 1024  # features of a prompt that are projected at a time

Capture = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass
class _Seat:
    """A sequence that drafts. ``length`` features are in the cache, ``fresh`` ones wait in the buffer behind them."""

    length: int = 0
    fresh: int = 0
    anchor: int = 0
    waits: bool = False  # a pass is due
    drafted: tuple[list[list[int]], list[list[float]]] | None = None


class HeadPass:
    """The head's forward over the blocks of all sequences that wait for one, together.

    Decoders ask one after the other, each for its own sequence; the first of a round starts the pass for all of them.

    S slots, F feature rows and R block rows of each, D drafted positions, K candidates of each.

    Args:
        head: the draft head, on the target's device and in its dtype.
        model: the target, whose embedding and LM head it borrows.
        slots: sequences at a time.
        capacity: tokens that each may reach.
        depth: D, less than the block.
        width: K.
        capture: see :class:`specbench.decoding.Target`.
        attention: backend, one of :data:`specbench.engine.attention.choice.NAMES`.

    Raises:
        EnvironmentRefused: no memory for the head's cache.
    """

    def __init__(
        self,
        head: DraftHead,
        model: Any,
        *,
        slots: int,
        capacity: int,
        depth: int,
        width: int,
        capture: Capture,
        attention: str = "auto",
    ) -> None:
        config = head.config
        device: torch.device = model.device
        self._head, self._model, self._depth = head, model, depth
        self._embed = model.get_input_embeddings()
        self._scorer = head.scorer(model.get_output_embeddings())
        self._ids = head.draft_ids
        if self._ids is not None:
            Linears(self._scorer, kind_for(head)).attach()
        self._width = min(width, self._scorer.weight.shape[0])
        # The rows that look ahead were trained on whole blocks; without them, those behind the last wanted one are
        # nobody's business.
        self._rows = depth + 1 if config.causal else config.block_size
        self._fresh = depth + 1  # the longest path of a tree of that depth, root included
        attentions = Attentions(attention, model)
        shape = config.num_key_value_heads, config.head_dim, config.head_dim
        shapes = dict.fromkeys(range(config.num_hidden_layers), shape)
        attentions.check_shapes(shapes)
        self._ops: Ops = attentions.ops()
        self._backend = attentions.backend(attentions.tree)
        # A last step may reach a tree beyond the capacity; behind its features the block, and once more as many rows
        # for blocks that look ahead (:meth:`_sight`).
        self._scratch = 2 * self._fresh + 2 * config.block_size
        try:
            self._cache = StaticCache(shapes, slots, capacity + self._scratch, head.dtype, device)
            self._features = torch.zeros(slots, self._fresh, head.fc.in_features, dtype=head.dtype, device=device)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            raise EnvironmentRefused(
                f"no memory for the draft head's cache of {slots} × {capacity} tokens; lower --max-new-tokens or "
                "--concurrency"
            ) from error
        pinned = device.type == "cuda"  # copies from and to pageable memory would wait for the host
        self._host_in = torch.zeros(3, slots, dtype=torch.int32, pin_memory=pinned)
        self._device_in = torch.zeros_like(self._host_in, device=device)
        shape_out = slots, 2, depth, self._width
        self._host_out = torch.zeros(shape_out, dtype=torch.int32, pin_memory=pinned)
        parents = torch.arange(-1, self._rows - 1, dtype=torch.int32, device=device).clamp_(min=0)
        self._order = self._ops.ancestry(parents.expand(slots, -1).contiguous())
        self._masks = torch.full((slots, self._rows - 1), config.mask_token_id, device=device)
        self._device = device
        self._seats: list[_Seat | None] = [None] * slots
        self._extent: int | None = None
        self._launches: dict[int, Callable[[], None]] = {}
        self._capture_all(capture)

    # ------------------------------------------------------------------ sequences

    def open(self) -> int:
        """Takes the lowest free slot.

        Raises:
            ValueError: there is none.
        """
        slot = self._seats.index(None)
        self._seats[slot] = _Seat()
        return slot

    def close(self, slot: int) -> None:
        """Gives a slot back; its cells are overwritten by whoever comes next."""
        self._seats[slot] = None

    def length(self, slot: int) -> int:
        """Features of a slot so far."""
        seat = self._seat(slot)
        return seat.length + seat.fresh

    def no_features(self, count: int) -> Tensor:
        """Features [count, T × H] that say nothing, for timing."""
        return self._features.new_zeros(count, self._features.shape[2])

    @torch.inference_mode()
    def append(self, slot: int, features: Tensor, anchor: int) -> None:
        """Takes what the last forward of the target brought.

        Args:
            slot: whose.
            features: [n, T × H] tapped layers of the tokens that it put in the cache. Read at once: they are the
                engine's, and only until its next step.
            anchor: the last emitted token, which has no features yet.
        """
        seat = self._seat(slot)
        if seat.fresh + len(features) > self._fresh:  # a prompt
            self._absorb(slot, self._features[slot, : seat.fresh])
            self._absorb(slot, features)
            seat.fresh = 0
        else:
            self._features[slot, seat.fresh : seat.fresh + len(features)].copy_(features)
            seat.fresh += len(features)
        seat.anchor, seat.waits, seat.drafted = anchor, True, None

    def marginals(self, slot: int) -> Marginals:
        """What the head says comes behind a slot's anchor; runs the pass if that has not been done.

        Returns:
            D depths of K candidates, log-probabilities over all that the head can draft, at temperature 1.

        Raises:
            ValueError: the slot has brought nothing new since it was asked last.
        """
        seat = self._seat(slot)
        if seat.drafted is None:
            if not seat.waits:
                raise ValueError(f"slot {slot} asks for a draft without features of its last tokens")
            self._run()
        assert seat.drafted is not None
        tokens, logp = seat.drafted
        seat.drafted = None
        return Marginals(seat.anchor, tokens, logp)

    def _seat(self, slot: int) -> _Seat:
        seat = self._seats[slot]
        if seat is None:
            raise ValueError(f"slot {slot} is free")
        return seat

    # ------------------------------------------------------------------ the pass

    def _capture_all(self, capture: Capture) -> None:
        """Captures the pass for every number of slots, where passes are captured at all."""
        slots = len(self._seats)
        buckets = sorted({min(slots, bucket) for bucket in (*SLOT_BUCKETS, slots) if bucket < 2 * slots})
        for bucket in buckets:
            work = _bound(self._work, bucket)
            launch = capture(work)
            if launch is work:  # steps are eager here, on exact shapes
                return
            self._launches[bucket] = launch

    def _run(self) -> None:
        """One pass for every slot that waits for one; those between them step along and keep nothing."""
        waiting = [slot for slot, seat in enumerate(self._seats) if seat is not None and seat.waits]
        slots = waiting[-1] + 1
        if self._launches:
            slots = next(bucket for bucket in self._launches if bucket >= slots)
        # A slot that does not wait writes behind its own features, where nothing is kept.
        columns = [(seat.length, seat.fresh, seat.anchor) if seat else (0, 0, 0) for seat in self._seats[:slots]]
        self._host_in[:, :slots] = torch.tensor(columns, dtype=torch.int32).T
        if self._launches:
            self._launches[slots]()
        else:
            self._extent = max(length + fresh for length, fresh, _ in columns) + 2 * self._rows
            self._work(slots)
        settle(self._device)
        for slot in waiting:
            seat = self._seat(slot)
            tokens, bits = self._host_out[slot]
            seat.length, seat.fresh, seat.waits = seat.length + seat.fresh, 0, False
            seat.drafted = tokens.tolist(), bits.view(torch.float32).tolist()

    @torch.inference_mode()
    def _work(self, slots: int) -> None:
        """The device work of a pass over the first ``slots`` slots, the copies from and to the host included."""
        self._device_in.copy_(self._host_in, non_blocking=True)
        length, fresh, anchor = self._device_in[:, :slots]
        here = slice(0, slots)
        steps = torch.arange(max(self._rows, self._fresh), device=self._device)
        # Features first: the block starts behind the last real one and overwrites those that only fill up.
        self._cache.aim(here, length, self._extent, self._ops)
        fused = self._head.fuse(self._features[here])
        self._store(fused, length[:, None] + steps[: self._fresh])
        start = length + fresh
        self._cache.aim(here, start, self._extent, self._ops)
        sees = self._backend(self._sight(start))

        def attend(index: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.update(key, value, index)
            attention: Any = module
            return sees(query, keys, values, attention.scaling, attention.sliding_window)

        block = torch.cat([anchor[:, None].long(), self._masks[here]], dim=1)
        rows = self._embed(block).to(self._head.dtype)
        hidden = self._head(rows, start[:, None] + steps[: self._rows], attend)
        logits = self._scorer(hidden[:, 1 : self._depth + 1])
        best, tokens = logits.topk(self._width, dim=-1)
        if self._ids is not None:
            tokens = self._ids[tokens]
        wide = torch.promote_types(logits.dtype, torch.float32)
        logp = (best.to(wide) - logits.to(wide).logsumexp(-1, keepdim=True)).float()
        self._host_out[here].copy_(torch.stack([tokens.int(), logp.view(torch.int32)], dim=1), non_blocking=True)

    def _sight(self, start: Tensor) -> Visibility:
        """What a block's rows see: the context, and of the block those before them or all of it.

        Backends may rely on parents coming before children, so a row of a tree never sees a later one. For a block
        that looks ahead its own cells are therefore counted as context, and its rows as rows that see none.
        """
        depth, rows = self._order.depth[: len(start)], self._order.rows[: len(start)]
        if self._head.config.causal:
            return Visibility(start, depth, rows, self._extent)
        return Visibility(start + self._rows, torch.zeros_like(depth), torch.zeros_like(rows), self._extent)

    def _absorb(self, slot: int, features: Tensor) -> None:
        """Puts many features into the cache at once, eagerly; prompts differ in length."""
        seat = self._seat(slot)
        for chunk in features.split(CHUNK):
            if len(chunk):
                at = torch.arange(seat.length, seat.length + len(chunk), device=self._device)[None]
                self._cache.aim(slice(slot, slot + 1), at[:, 0], None, TorchOps())
                self._store(self._head.fuse(chunk[None].to(self._head.dtype)), at)
                seat.length += len(chunk)

    def _store(self, fused: Tensor, positions: Tensor) -> None:
        """Keys and values of fused features [S, n, H], where the cache is aimed at."""
        for index, (key, value) in enumerate(self._head.project_context(fused, positions)):
            self._cache.update(key, value, index)


def _bound(work: Callable[[int], None], slots: int) -> Callable[[], None]:
    return lambda: work(slots)
