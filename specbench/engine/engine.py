"""The engine: slots, and one target forward per step over the token tree of each (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.engine import checks, fusing, linears
from specbench.engine.attention import interface
from specbench.engine.attention.interface import Calls, Visibility
from specbench.engine.attention.reference import ReferenceAttention
from specbench.engine.cache import LayerShape, ShapeRecorder, StaticCache
from specbench.engine.phases import Phases
from specbench.engine.sampler import Sampling, scores
from specbench.engine.tree import StepResult, TokenTree
from specbench.engine.verify import accept_path, ancestors
from specbench.errors import EnvironmentRefused, UsageError

BACKENDS = {"reference": ReferenceAttention}
# Row counts that a step is padded to where shapes are dear (one CUDA graph each); a CPU pays per row and pads to none.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MAX_ROWS = ROW_BUCKETS[-1]
PREFILL_CHUNK = 1024  # rows of one prefill forward; bounds the dense mask to chunk × context


def _unmarked(phase: str) -> None:
    """The stop-watch of a step that is not traced."""


class Engine:
    """Runs token trees of several sequences through one transformers causal LM.

    Args:
        model: a transformers causal LM whose attention goes through ``AttentionInterface``.
        slots: sequences that can be stepped together.
        capacity: tokens a sequence may reach, prompt and output together.
        max_rows: largest tree.
        sampling: how next tokens are chosen; the same for all slots.
        backend: attention backend by name.
        pad_rows: pad steps to :data:`ROW_BUCKETS`; default is on for CUDA.
        compile: run the model's layers through torch.compile.

    Raises:
        UsageError: an argument outside its range, or an attention feature the engine does not express.
        EnvironmentRefused: the cache does not fit in memory.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 1,
        capacity: int,
        max_rows: int = MAX_ROWS,
        sampling: Sampling | None = None,
        backend: str = "reference",
        pad_rows: bool | None = None,
        compile: bool = False,
    ) -> None:
        if not 1 <= max_rows <= MAX_ROWS:
            raise UsageError(f"a tree of {max_rows} rows exceeds the row limit of {MAX_ROWS}; choose smaller options")
        if slots < 1 or capacity < 1:
            raise UsageError(f"slots and capacity must be 1 or more, not {slots} and {capacity}")
        self.model = model.eval()
        self.device: torch.device = model.device
        self.sampling = sampling or Sampling()
        self.capacity = capacity
        self._backend = BACKENDS[backend]
        self._buckets = ROW_BUCKETS if (self.device.type == "cuda" if pad_rows is None else pad_rows) else None
        self._lengths: list[int | None] = [None] * slots  # cached tokens of each slot; None is a free slot
        # Two at least: the lossless check steps two rows where no method steps more than one.
        self._max_rows = max(2, max_rows)
        self.native_attention: str = model.config._attn_implementation
        if self.native_attention == interface.NAME:
            raise ValueError("this model already serves an engine; close() that one first")
        reach = capacity + max_rows  # positions a forward may use: a last tree that starts at the capacity
        checks.check_declared(model, reach)
        self.linears = linears.kind_for(model)
        self._linears = linears.Linears(model, self.linears)
        self._fused = fusing.Fused(model, compile)
        self.attach()
        try:
            shapes, calls = self._layer_shapes()
            checks.check_windows(model, calls.windows, reach)
            # Twice the largest tree: an idle slot may have ended up to a tree beyond the capacity, and steps along.
            scratch = max(2 * self._bucket(self._max_rows), checks.PROBE_CELLS)
            self.cache = StaticCache(shapes, slots, capacity + scratch, model.dtype, self.device)
            checks.check_forward(model, self._probe, self.native_attention)
        except BaseException as error:
            self.close()
            out_of_memory = isinstance(error, RuntimeError) and "memory" in str(error)
            if not out_of_memory and not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
                raise
            raise EnvironmentRefused(
                f"no memory for a KV cache of {slots} × {capacity} tokens; lower --max-new-tokens or --concurrency"
            ) from error

    def attach(self) -> None:
        """Gives the model's layers the engine's attention and linears; :meth:`close` takes them back."""
        self.model.set_attn_implementation(interface.NAME)
        self._linears.attach()
        self._fused.attach()

    def close(self) -> None:
        """Gives the model back its own attention and linears."""
        self._fused.detach()
        self._linears.detach()
        self.model.set_attn_implementation(self.native_attention)

    # ------------------------------------------------------------------ slots

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._lengths)

    def length(self, slot: int) -> int:
        """Cached tokens of an occupied slot."""
        length = self._lengths[slot]
        if length is None:
            raise ValueError(f"slot {slot} is free")
        return length

    def alloc(self) -> int:
        """Occupies the lowest free slot, so that occupied slots stay together at the front.

        Raises:
            ValueError: all slots are occupied.
        """
        slot = self._lengths.index(None)
        self._lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Releases a slot; its cells are overwritten by whoever comes next."""
        self._lengths[slot] = None

    # ------------------------------------------------------------------ steps

    def prefill(self, slot: int, ids: Sequence[int], tree: TokenTree | None = None, *, top_k: int = 0) -> StepResult:
        """Feeds a prompt to an occupied slot and emits what follows it.

        The last prompt token is the root of a tree, so that a method may send guesses along with the prompt.

        Args:
            slot: an occupied slot; ids are appended to what it holds.
            ids: prompt token ids, at least one.
            tree: guesses under the last prompt token (``tree.tokens[0] == ids[-1]``); default none.
            top_k: return the k highest scores of each tree row.

        Raises:
            UsageError: the prompt is empty or does not fit the capacity.
        """
        if not len(ids):
            raise UsageError("the prompt is empty; give at least one token")
        if self.length(slot) + len(ids) > self.capacity:
            raise UsageError(
                f"a prompt of {self.length(slot) + len(ids)} tokens does not fit a cache of {self.capacity}; "
                "use a shorter prompt"
            )
        tree = tree or TokenTree.chain([ids[-1]])
        if tree.tokens[0] != ids[-1]:
            raise ValueError(f"the tree of a prefill starts at the last prompt token {ids[-1]}, not {tree.tokens[0]}")
        self._check_rows(tree)
        head = list(ids[:-1])
        while head and len(head) + len(tree) > PREFILL_CHUNK:
            *chunk, last = head[:PREFILL_CHUNK]
            head = head[PREFILL_CHUNK:]
            self._forward(slice(slot, slot + 1), [TokenTree.chain([last])], chunk)
            self._lengths[slot] = self.length(slot) + len(chunk) + 1
        return self._step(slice(slot, slot + 1), {slot: tree}, head, top_k)[slot]

    def step(
        self, trees: Mapping[int, TokenTree], *, top_k: int = 0, phases: Phases | None = None
    ) -> dict[int, StepResult]:
        """One target forward over the trees of several slots: verify, accept, commit.

        Args:
            trees: tree of each slot to step; each root is that slot's last emitted token.
            top_k: return the k highest scores of each row.
            phases: stop-watch that is told where the time goes.

        Returns:
            A result for each slot of ``trees``.

        Raises:
            UsageError: a sequence has reached the capacity, or a tree is larger than the engine was made for.
        """
        for slot, tree in trees.items():
            self._check_rows(tree)
            if self.length(slot) >= self.capacity:
                raise UsageError(
                    f"a sequence has reached the end of its cache of {self.capacity} tokens; raise its capacity"
                )
        # The batch is the contiguous range that spans them: slots are views of the cache then, never copies.
        # A slot inside it without a tree takes part as one dead row.
        return self._step(slice(min(trees), max(trees) + 1), trees, [], top_k, phases)

    def settle(self) -> None:
        """Returns when the device has nothing left to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _step(
        self,
        slots: slice,
        trees: Mapping[int, TokenTree],
        head: list[int],
        top_k: int,
        phases: Phases | None = None,
    ) -> dict[int, StepResult]:
        """Steps ``trees``; ``head`` is prompt that precedes the root of the only tree in the same forward."""
        mark = phases.mark if phases else _unmarked
        batch = [trees.get(slot) for slot in range(slots.start, slots.stop)]
        logits, inputs = self._forward(slots, batch, head, mark)
        positions = inputs.positions[:, len(head) :]
        chosen = scores(logits, positions + 1, self.sampling)
        next_token = chosen.argmax(-1)
        top = chosen.topk(top_k, dim=-1) if top_k else None
        mark("forward")
        path, bonus = accept_path(
            inputs.tokens[:, len(head) :], inputs.parents, inputs.accept, inputs.tree_reach, next_token
        )
        # The one host read of a step.
        packed = torch.cat([next_token, path.long(), bonus[:, None]], dim=1).tolist()
        mark("accept")
        width = next_token.shape[1]
        results: dict[int, StepResult] = {}
        for slot, tree in trees.items():
            at = slot - slots.start
            rows = [row for row, taken in enumerate(packed[at][width : width + len(tree)]) if taken]
            start = self.length(slot) + len(head)
            if rows[-1] != len(rows) - 1:  # a path that is not already the first rows
                self.cache.commit(slot, start, torch.tensor(rows, device=self.device))
            self._lengths[slot] = start + len(rows)
            results[slot] = StepResult(
                emitted=[tree.tokens[row] for row in rows[1:]] + [packed[at][-1]],
                path=rows,
                next_tokens=packed[at][: len(tree)],
                top=None if top is None else (top.values[at, : len(tree)].cpu(), top.indices[at, : len(tree)].cpu()),
            )
        mark("commit")
        return results

    def _check_rows(self, tree: TokenTree) -> None:
        if len(tree) > self._max_rows:
            raise UsageError(f"a tree of {len(tree)} rows exceeds the row limit of {self._max_rows}; raise max_rows")

    def _forward(
        self,
        slots: slice,
        batch: Sequence[TokenTree | None],
        head: Sequence[int] = (),
        mark: Callable[[str], None] = _unmarked,
    ) -> tuple[Tensor, _Inputs]:
        """Logits [S, Q, V] of the tree rows; KV of head and tree written to the scratch cells."""
        rows = self._bucket(max(len(tree) if tree else 1 for tree in batch))
        lengths = [self._lengths[slot] or 0 for slot in range(slots.start, slots.stop)]
        inputs = _Inputs.build(batch, rows, head, lengths, self.device)
        extent = max(lengths) + len(head) + rows
        self.cache.aim(slots, inputs.cells, extent)
        step = self._backend(Visibility(inputs.lengths, inputs.positions, inputs.reach, extent))
        mark("build")
        output = self._call(inputs, rows, self.cache, step)
        return output, inputs

    @torch.inference_mode()
    def _call(
        self, inputs: _Inputs, keep_logits: int, cache: Any, step: interface.Backend, calls: Calls | None = None
    ) -> Tensor:
        return self.model(
            input_ids=inputs.tokens,
            position_ids=inputs.positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep_logits,
            step=step,
            calls=calls,
        ).logits

    def _bucket(self, rows: int) -> int:
        """The number of rows that a step of ``rows`` is padded to."""
        return next(bucket for bucket in self._buckets if bucket >= rows) if self._buckets else rows

    def _layer_shapes(self) -> tuple[dict[int, LayerShape], Calls]:
        """What each layer stores and asks of attention, learnt from one row."""
        recorder, calls = ShapeRecorder(), Calls()
        inputs = _Inputs.build([TokenTree.chain([0])], 1, (), [0], self.device)
        step = self._backend(Visibility(inputs.lengths, inputs.positions, inputs.reach, 1))
        with checks.refusing():
            self._call(inputs, 1, recorder, step, calls)
        if not recorder.shapes:
            raise UsageError("this model keeps no KV cache that the engine can manage; it is not supported yet")
        return recorder.shapes, calls

    def _probe(self, prefix: Sequence[int], tree: TokenTree) -> Tensor:
        """Logits [rows, V] of ``tree`` over a cached ``prefix``; for the checks, before slots are in use."""
        *head, last = prefix
        try:
            self._forward(slice(0, 1), [TokenTree.chain([last])], head)
            self._lengths[0] = len(prefix)
            return self._forward(slice(0, 1), [tree])[0][0, : len(tree)]
        finally:
            self._lengths[0] = None


@dataclass(frozen=True)
class _Inputs:
    """Device tensors of one forward over S slots. ``R`` is head + Q rows, with a head only in a prefill."""

    tokens: Tensor  # [S, R]
    parents: Tensor  # [S, Q], within the tree; root and padding name themselves
    accept: Tensor  # bool [S, Q]
    lengths: Tensor  # [S]
    positions: Tensor  # [S, R]
    cells: Tensor  # [S, R]
    tree_reach: Tensor  # bool [S, Q, Q]
    reach: Tensor  # bool [S, R, R]

    @classmethod
    def build(
        cls,
        batch: Sequence[TokenTree | None],
        rows: int,
        head: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
    ) -> _Inputs:
        # One host array and one copy: [S, 3, Q] tokens, parents, accept.
        packed = np.zeros((len(batch), 3, rows), dtype=np.int64)
        packed[:, 1] = np.arange(rows)
        for at, tree in enumerate(batch):
            if tree is not None:
                count = len(tree)
                packed[at, 0, :count] = tree.tokens
                packed[at, 1, 1:count] = tree.parents[1:]
                packed[at, 2, :count] = True if tree.accept is None else tree.accept
        tokens, parents, accept = torch.from_numpy(packed).to(device).unbind(1)
        start = torch.tensor(lengths, dtype=torch.int64, device=device)
        tree_reach = ancestors(parents)
        positions = start[:, None] + len(head) + tree_reach.sum(-1) - 1
        reach = tree_reach
        if head:
            tokens = torch.cat([torch.tensor([list(head)], device=device), tokens], dim=1)
            before = torch.arange(len(head), device=device)
            positions = torch.cat([start[:, None] + before, positions], dim=1)
            total = len(head) + rows
            reach = torch.ones(1, total, total, dtype=torch.bool, device=device).tril_()
            reach[:, len(head) :, len(head) :] = tree_reach
        cells = start[:, None] + torch.arange(tokens.shape[1], device=device)
        return cls(tokens, parents, accept.bool(), start, positions, cells, tree_reach, reach)
