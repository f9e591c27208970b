"""Passes of a draft head over all slots at once, with its own KV cache.

A round is one launch and one host read: it stores the results of the target's last step and drafts after them, in one
pass or in several dependent passes. All its inputs are data on the device, so the round is captured in a CUDA graph if
steps are. Then it is launched directly after the step (:meth:`HeadPass.follow`), reads the accepted path and its
features on the device, and the host waits only once, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specbench.common import EnvironmentRefused
from specbench.decoding import Target
from specbench.engine.attention import interface
from specbench.engine.attention.choice import Attentions
from specbench.engine.buckets import SLOT_BUCKETS
from specbench.engine.cache import LayerShape, StaticCache
from specbench.engine.cpu import library
from specbench.engine.graphs import Running, settle
from specbench.engine.heads.head_rows import HeadRows, Surroundings
from specbench.engine.heads.seats import FIGURES, Seat, Seats
from specbench.engine.layers.code import OF_DEVICE
from specbench.engine.layers.cpu_head import CpuHead, CpuOps
from specbench.engine.layers.cpu_layers import OwnLayers
from specbench.engine.layers.gpu_layers import FusedLayers
from specbench.engine.layers.kernel_pieces import HeadKernels
from specbench.engine.layers.merged import by_shape, serve
from specbench.engine.layers.onednn import Linears, linear_kind
from specbench.engine.layers.parts import Unlike
from specbench.engine.layout import Group, Layout
from specbench.engine.ops import Ancestry, Ops, Outcomes, TorchOps
from specbench.engine.sampler import Stream, uniforms

CHUNK = 1024  # rows of a prompt that are read at a time

#: New rows of the text, whose keys and values it stores -> data for drafting.
Read = Callable[[HeadRows], Any]
#: (the new rows, the result of Read) -> tensors [S, …] for the host: integers, or numbers converted to float32.
Draft = Callable[[HeadRows, Any], Sequence[Tensor]]


def _nothing() -> None:
    """Work whose capture shows whether rounds are captured, which on a CPU can hold only torch operations."""


class HeadPass:
    """Rounds of a head for the sequences of a run.

    Each sequence has its own slot: :meth:`append` the results of a target step, then call :meth:`draft`. Methods call
    :meth:`draft` for one sequence after the other; the first call runs the round for all sequences with new rows.

    A row of a head's text is a token, with the target's features if the head reads them; a head like EAGLE's pairs the
    features of a token with the token after it, i.e. a step's ``hidden`` and ``emitted``. Draft rows are scratch: the
    next round overwrites them, unless :meth:`keep` makes some of them text.

    Args:
        target: the target to draft for, with its slots, capacity, precision, attention backend and capture.
        read: runs the head on new rows of a text. Prompts come in chunks, and drafts start only after the last one.
        draft: any number of drafting passes that follow the new rows. ``read`` and ``draft`` must launch the same
            operations for any data and must not wait for the device.
        shapes: (KV heads, key size, value size) that each layer stores.
        heads: query heads of each layer, on which the size of a kernel's tile depends; 0 is one per KV head.
        new_rows: most rows that a target step adds: those of the longest path.
        draft_rows: most rows that ``draft`` computes after the text.
        features: size of a row's features; 0 for a head that reads only tokens.
        draws: most draft tokens that :meth:`HeadRows.drawn` samples; 0 for a head that takes the best tokens.
        modules: the head's modules: their linear layers, and the attention of modules with transformers'
            ``set_attn_implementation``, are replaced by the engine's.
        layers: the head's decoder layers, if its forward uses :attr:`HeadRows.pieces`; they run in few kernels on a GPU
            and in C++ on a CPU.
    """

    def __init__(
        self,
        target: Target,
        read: Read,
        draft: Draft,
        *,
        shapes: dict[int, LayerShape],
        heads: int = 0,
        new_rows: int,
        draft_rows: int,
        features: int = 0,
        draws: int = 0,
        modules: Sequence[nn.Module] = (),
        layers: Sequence[nn.Module] = (),
    ) -> None:
        slots, dtype, device = target.slots, target.model.dtype, target.model.device
        self._read, self._draft, self._device = read, draft, device
        self._new_rows, self._draft_rows = new_rows, draft_rows
        self._read_rows = new_rows  # rows of each text that a round reads; an eager one reads no padding
        for module in modules:
            if use := getattr(module, "set_attn_implementation", None):  # layers of transformers
                use(interface.NAME)
        self._attentions = Attentions(target.attention, target.model)
        self._attentions.check_shapes(shapes, dict.fromkeys(shapes, heads) if heads else None)
        self._ops = self._ops_of(target)
        if isinstance(self._ops, CpuOps):
            self._ops.multiply(modules)
        else:
            for module in modules:
                Linears(module, linear_kind(module)).attach()
        # The last step may add a whole path of rows after the capacity. A slot without new rows writes after its
        # drafts, and a block with look-ahead is followed by the same number of cells again.
        scratch = 2 * new_rows + 3 * draft_rows
        try:
            self._cache = StaticCache(shapes, slots, target.capacity + scratch, dtype, device)
            self._features = torch.zeros(slots, new_rows, features, dtype=dtype, device=device)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            raise EnvironmentRefused(
                f"no memory for the draft head's cache of {slots} × {target.capacity} tokens; lower --max-new-tokens "
                "or --concurrency"
            ) from error
        self._kernels = self._kernels_of(layers, target.native)
        if self._kernels is not None and not isinstance(self._ops, CpuOps):
            self._multiply(modules, self._kernels, target)
        self._pinned = device.type == "cuda"  # copies from and to pageable memory would wait for the host
        self._host_in = torch.zeros(FIGURES + new_rows, slots, dtype=torch.int32, pin_memory=self._pinned)
        self._device_in = torch.zeros_like(self._host_in, device=device)
        self._sampling = target.sampling
        self._host_numbers = torch.zeros(slots, draws, dtype=torch.float64, pin_memory=self._pinned)
        self._numbers = torch.zeros_like(self._host_numbers, device=device)
        self._orders: dict[tuple[int, int], Ancestry] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._seats = Seats(slots, new_rows, draft_rows)
        self.open, self.close = self._seats.open, self._seats.close
        self.length, self.hold = self._seats.length, self._seats.hold
        self._extent: int | None = new_rows + 2 * draft_rows
        self._launches: dict[int, Callable[[], None]] = {}
        self._measure()
        if isinstance(self._ops, CpuOps) or (layers and OF_DEVICE.get(device.type) is FusedLayers):
            target.note(self.report())
        self._capture_all(target.capture)
        target.at_close(self.release)
        if self._launches and not draws:  # random numbers depend on the new length of the text, unknown to the host
            self._take_nothing()
            target.follow(self.follow)

    def release(self) -> None:
        """Free the cache and the graphs when the target's engine is closed; no drafts are possible afterwards."""
        self._launches.clear()
        del self._cache, self._features, self._kernels, self._read, self._draft

    @property
    def nbytes(self) -> int:
        """Bytes of the cache and of the buffered features."""
        return self._cache.nbytes + self._features.nbytes

    # ------------------------------------------------------------------ sequences

    @torch.inference_mode()
    def append(self, slot: int, tokens: Sequence[int], features: Tensor | None = None) -> None:
        """Add the results of the target's last forward; earlier drafts that were not kept are dropped.

        After :meth:`hold` the rows are stored, and the head reads them when it drafts again.

        ``tokens``: one per row. ``features``: [rows, size], read immediately, since the engine overwrites them in its
        next step.
        """
        seat = self._seats[slot]
        size = self._features.shape[2]
        given = self._features.new_zeros(len(tokens), 0) if features is None else features
        if not len(tokens) or given.shape != (len(tokens), size):
            raise ValueError(
                f"{len(tokens)} tokens with features {[*given.shape]} do not fit this head, whose rows have {size}"
            )
        if seat.lazy:
            seat.lazy, seat.outcome = False, None
            seat.kept.append((tokens, given.clone()))
            return
        self._add(slot, seat, tokens, given)

    def _add(self, slot: int, seat: Seat, tokens: Sequence[int], given: Tensor) -> None:
        """Read rows of a slot's text, or leave them in the buffers for the next round if they fit there."""
        if seat.followed:  # the round has already read these rows from the step
            self._settle_seat(slot, len(tokens))
            return
        if len(seat.new) + len(tokens) > self._new_rows:  # a prompt
            self._absorb(slot, seat.new, self._features[slot, : len(seat.new)])
            self._absorb(slot, tokens[:-1], given[:-1])
            seat.new, tokens, given = [], tokens[-1:], given[-1:]
        at = len(seat.new)
        self._features[slot, at : at + len(tokens)].copy_(given)
        seat.new += tokens
        seat.drafted, seat.outcome = False, None

    @torch.inference_mode()
    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Make some draft rows of the last round text and drop the rest; for heads whose rows have no features.

        Call it before the next :meth:`append`. ``rows``: those on the accepted path, ascending, counted from the
        round's first pass on.
        """
        seat = self._seats[slot]
        if not seat.drafted or any(not 0 <= row < self._draft_rows for row in rows):
            raise ValueError(f"slot {slot} does not hold draft rows {[*rows]}")
        if rows:
            self._cache.commit(slot, seat.length, torch.tensor(rows, dtype=torch.int64, device=self._device))
        seat.length, seat.drafted = seat.length + len(rows), False

    def draft(self, slot: int) -> tuple[Tensor, ...]:
        """Return a slot's results of ``draft`` on the host; run the round if it has not run yet.

        They are the tensors that ``draft`` returned, without the first dimension.
        """
        seat = self._seats[slot]
        if seat.outcome is None:
            self._read_kept()
            if not seat.new:
                raise ValueError(f"slot {slot} cannot draft without new rows of its text")
            self._run()
        assert seat.outcome is not None
        parts = seat.outcome.split(self._widths)
        seat.outcome = None
        return tuple(
            (part.view(torch.float32) if numbers else part).view(shape)
            for part, (numbers, shape) in zip(parts, self._kinds, strict=True)
        )

    @torch.inference_mode()
    def _read_kept(self) -> None:
        """Read the rows that were kept while the head did not draft, of all sequences that share the next round."""
        for slot, seat in self._seats.occupied():
            if seat.kept:
                tokens = [token for some, _ in seat.kept for token in some]
                features = torch.cat([some for _, some in seat.kept])
                seat.kept = []
                self._add(slot, seat, tokens, features)

    @torch.inference_mode()
    def follow(self, step: Running) -> None:
        """Launch the round of all sequences that need only the results of this target step."""
        following = [slot for slot, tree in step.batch.trees.items() if self._seats.follows(slot, tree)]
        if not following:
            return
        slots = self._bucket(following[-1] + 1)
        columns = self._seats.columns(slots)
        for slot in following:
            seat = self._seats[slot]
            seat.followed, columns[slot] = True, [seat.length, 0, 0, 1, *[0] * self._new_rows]
        self._send(columns)
        self._take(step.outcome, step.fields.layout.first, step.hidden, slots)
        self._launches[slots]()

    def _take(self, outcome: Outcomes, firsts: Tensor, hidden: Tensor, slots: int) -> None:
        """Read a step's results for those of the first ``slots`` slots that are marked as following it."""
        _, new, anchor, follows = self._device_in[:FIGURES, :slots]
        next_token, path, count, bonus = outcome
        self._ops.take(
            (next_token, path, count[:slots], bonus[:slots]), firsts[:slots], hidden, follows,
            new, anchor, self._device_in[FIGURES:, :slots], self._features[:slots],
        )  # fmt: skip

    @torch.inference_mode()
    def _take_nothing(self) -> None:
        """Read an empty step for no slot, so that kernels are compiled now and not during a timed request."""
        slots, _, size = self._features.shape
        none = torch.zeros(slots, dtype=torch.int32, device=self._device)
        self._take((none, none, none, none), none, self._features.new_zeros(slots, size), slots)

    def _settle_seat(self, slot: int, new: int) -> None:
        self._seats[slot].settle(new, self._host_out[slot].clone())

    # ------------------------------------------------------------------ the round

    def _ops_of(self, target: Target) -> Ops:
        """Return the operations of the round; on a CPU those of our C++ where it runs."""
        ours = OF_DEVICE.get(self._device.type) is OwnLayers and target.native is not False
        ours = ours and self._attentions.tree == "reference" and target.model.dtype in library.TYPES
        if ours and target.capture(_nothing) is _nothing:
            try:
                return CpuOps()
            except EnvironmentRefused:  # the target's report says why
                pass
        return self._attentions.ops()

    def _kernels_of(self, layers: Sequence[nn.Module], native: bool | None) -> HeadKernels | None:
        """Return our code for the layers, or None if torch runs them; ``_why_plain`` is then the reason."""
        ops, fuses = self._ops, OF_DEVICE.get(self._device.type) is FusedLayers and native is not False
        wanted = fuses or isinstance(ops, CpuOps)
        self._why_plain = "" if wanted else "not requested"
        if not layers or not wanted:
            return None
        try:
            return CpuHead(layers, self._cache, ops) if isinstance(ops, CpuOps) else HeadKernels(layers, self._cache)
        except Unlike as unlike:
            self._why_plain = f"{unlike}"
            return None

    def _multiply(self, modules: Sequence[nn.Module], kernels: HeadKernels, target: Target) -> None:
        """Compute the head's products of few rows with the target's choice of products."""
        merged = list(kernels.products)
        parts = {part for product in merged for part in product.linears}
        linears = [each for module in modules for each in module.modules() if type(each) is nn.Linear]
        alone = [each for each in linears if each not in parts]
        weights = [each.weight for each in merged] + [each.weight.detach() for each in alone]
        by = target.products(by_shape(weights))
        if by is None:
            return
        for product in merged:
            product.by = by
        for linear in alone:
            serve(linear, by)

    def report(self) -> dict[str, Any]:
        """Which pieces of the layers run in our own code, and why the others do not."""
        own = {"linears": "own", "bf16_products": self._ops.structures.halved} if isinstance(self._ops, CpuOps) else {}
        if self._kernels is None:
            return {"fusions": [], "not_fused": {"all": self._why_plain} if self._why_plain else {}, **own}
        return {**self._kernels.report(), **own}

    def _measure(self) -> None:
        """Run a round and ignore its result, to learn the shapes of its results and which kernels its layers get."""
        slots = len(self._seats)
        if self._kernels is not None:
            self._device_in[1] = self._new_rows
            generator = torch.Generator("cpu").manual_seed(0)
            noise = torch.randn(self._features.shape, generator=generator, dtype=torch.float32, device="cpu")
            self._features.copy_(noise)
            with self._kernels.learn():
                self._compute(slots)
            self._device_in.zero_()
            self._features.zero_()
        found = self._compute(slots)
        self._kinds = [(part.is_floating_point(), part.shape[1:]) for part in found]
        self._widths = [shape.numel() for _, shape in self._kinds]
        self._host_out = torch.zeros(slots, sum(self._widths), dtype=torch.int32, pin_memory=self._pinned)

    def _capture_all(self, capture: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """Capture the round for every bucket of slots, if steps are captured."""
        slots, self._extent = len(self._seats), None
        for bucket in sorted({min(slots, bucket) for bucket in (*SLOT_BUCKETS, slots) if bucket < 2 * slots}):
            work = partial(self._work, bucket)
            launch = capture(work)
            if launch is work:  # steps are eager here, on exact shapes
                return
            self._launches[bucket] = launch

    def _run(self) -> None:
        """Run one round for every slot with new rows; slots in between are computed too, without any effect."""
        waiting = self._seats.waiting()
        slots = self._bucket(waiting[-1] + 1)
        columns = self._seats.columns(slots)
        if draws := self._numbers.shape[1]:
            # Keyed by the block's start, so that no two blocks of a text share random numbers.
            roots = [self.length(slot) for slot in waiting]
            self._host_numbers[waiting] = uniforms(self._sampling().seed, Stream.DRAFT, roots, draws)
        self._send(columns)
        if self._launches:
            self._launches[slots]()
        else:
            ends = max(length + new for length, new, *_ in columns) + 2 * self._draft_rows
            self._extent = max(ends, max(length for length, *_ in columns) + self._new_rows)
            self._read_rows = max(new for _, new, *_ in columns)
            self._work(slots)
        settle(self._device)
        for slot in waiting:
            self._settle_seat(slot, len(self._seats[slot].new))

    def _bucket(self, slots: int) -> int:
        """Number of slots of the captured round for ``slots`` slots."""
        return next((bucket for bucket in self._launches if bucket >= slots), slots)

    @torch.inference_mode()
    def _send(self, columns: Sequence[Sequence[int]]) -> None:
        """Copy the numbers of each slot to the device."""
        slots = len(columns)
        numbers = np.fromiter(chain.from_iterable(columns), np.int32, slots * len(columns[0]))
        self._host_in.numpy()[:, :slots] = numbers.reshape(slots, -1).T
        self._device_in.copy_(self._host_in, non_blocking=True)
        self._numbers.copy_(self._host_numbers, non_blocking=True)

    @torch.inference_mode()
    def _work(self, slots: int) -> None:
        """Device work of a round over the first ``slots`` slots, including the copy to the host."""
        parts = [
            part.float().view(torch.int32) if part.is_floating_point() else part.int()
            for part in self._compute(slots)
        ]  # fmt: skip
        self._host_out[:slots].copy_(torch.cat([part.flatten(1) for part in parts], dim=1), non_blocking=True)

    @torch.inference_mode()
    def _compute(self, slots: int) -> Sequence[Tensor]:
        length, new, anchor = self._device_in[:3, :slots]
        rows = self._read_rows
        tokens = self._device_in[FIGURES : FIGURES + rows, :slots].T
        around = self._around(self._ops, self._attentions.tree, slice(0, slots), self._extent)
        # Padding rows come last: no other row sees them, and drafts overwrite them.
        text = HeadRows.of_text(
            around, self._chain(slots, rows), tokens, self._features[:slots, :rows], length, new, anchor
        )
        text = replace(text, numbers=self._numbers[:slots])
        return self._draft(text, self._read(text))

    def _absorb(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Put many rows into the cache at once, eagerly, because prompts differ in length."""
        seat = self._seats[slot]
        for at in range(0, len(tokens), CHUNK):
            some, theirs = tokens[at : at + CHUNK], features[at : at + CHUNK].to(self._features.dtype)
            count, end = len(some), seat.length + len(some)
            ids = torch.tensor([some], dtype=torch.int64, device=self._device)
            # With the same dtype as in a round, so that the same kernels are used.
            length, new = torch.tensor([[seat.length], [count]], dtype=torch.int32, device=self._device)
            around = self._around(TorchOps(), "reference", slice(slot, slot + 1), end)
            around = replace(around, chain=self._text_order, even=partial(self._text_layout, count))
            order = self._text_order(1, count)
            self._read(HeadRows.of_text(around, order, ids, theirs[None], length, new, ids[:, -1]))
            seat.length = end

    def _around(self, ops: Ops, attention: str, slots: slice, extent: int | None) -> Surroundings:
        backend = self._attentions.backend(attention)
        pieces = None if self._kernels is None else self._kernels.of
        return Surroundings(self._cache, ops, backend, slots, extent, self._draft_rows, self._chain, self._even, pieces)

    def _chain(self, slots: int, rows: int) -> Ancestry:
        """Ancestry of rows whose parent is the row before; made once for each number of slots and rows."""
        if (slots, rows) not in self._orders:
            every = torch.arange(slots * rows, dtype=torch.int32, device=self._device)
            parents = torch.where(every % rows == 0, every, every - 1)
            self._orders[slots, rows] = self._ops.ancestry(parents, self._even(slots, rows))
        return self._orders[slots, rows]

    def _even(self, slots: int, rows: int) -> Layout:
        if (slots, rows) not in self._layouts:
            height = self._attentions.height(rows, self._attentions.tree, True)
            self._layouts[slots, rows] = Layout.even(slots, rows, self._device, height=height)
        return self._layouts[slots, rows]

    def _text_order(self, slots: int, rows: int) -> Ancestry:
        """:meth:`_chain` of one text without pointer jumping, which is slow over a thousand rows."""
        reach = torch.ones(rows, rows, dtype=torch.bool, device=self._device).tril_()
        return Ancestry(torch.arange(rows, device=self._device), reach)

    def _text_layout(self, new: int, slots: int, rows: int) -> Layout:
        """Layout of one text's rows: ``new`` rows end the text, any other number may have padding."""
        layout = Layout.even(1, rows, self._device)
        group = Group(slice(0, 1), slice(0, rows), None, causal=rows == new)
        return replace(layout, groups=(group,))
