"""The engine: slots, and one target forward per step over the token tree of each (DESIGN §4)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.common import EnvironmentRefused, SpecbenchError, UsageError
from specbench.decoding import BadTree, StepResult, TokenTree
from specbench.engine import block, checks, graphs, layer_check, memory, pack, room, rotary, skinny
from specbench.engine.attention import interface
from specbench.engine.attention.choice import Attentions, Steps
from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.buckets import ROW_BUCKETS, row_bucket, scratch_cells
from specbench.engine.cache import LayerShape, ShapeRecorder, StaticCache
from specbench.engine.code import LayerCode
from specbench.engine.fast_paths import reason
from specbench.engine.graphs import Follower, StepGraph, StepGraphs
from specbench.engine.ops import TorchOps
from specbench.engine.pack import Batch, Outcome, Shape
from specbench.engine.phases import Phases
from specbench.engine.sampler import Sampling
from specbench.engine.step import Computed, Kind, Mark, Program, unmarked
from specbench.engine.sums import WideSums

CALIBRATION_CONTEXT = 512  # cached tokens of the steps that :meth:`Engine.step_seconds` times
_TIMED = 5  # of each
PREFILL_CHUNK = 1024  # rows of one prefill forward; bounds the dense mask to chunk × context

Forced = Mapping[int, Sequence[int]]


class Engine:
    """Runs token trees of several sequences through one transformers causal LM.

    Args:
        slots: sequences that can be stepped together.
        capacity: tokens a sequence may reach, prompt and output together.
        backend: attention backend, one of :data:`specbench.engine.attention.choice.NAMES`.
        graphs: capture steps in CUDA graphs; default is on for CUDA, where a model that cannot be captured is then
            stepped eagerly.
        compile: run the model's layers through torch.compile, which fuses what is between the matrix products.
        native: run layers and LM head by our own compiled code, which is for CPUs; default is on where it can be had.
        pad_rows: pad eager steps to :data:`~specbench.engine.graphs.ROW_BUCKETS`; default is on for CUDA.
        deterministic: let no measured time decide anything.

    Attributes:
        positions: that the model has, where it can be given no others; None is as many as one likes.
        rounding: how far scores may be off, as a share of their norm, where sums have another order.

    Raises:
        UsageError: an argument outside its range, or an attention feature the engine does not express.
        EnvironmentRefused: the cache, or a step of the largest tree, does not fit in memory, or the device has not what
            was asked for.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 1,
        capacity: int,
        max_rows: int = ROW_BUCKETS[-1],
        sampling: Sampling | None = None,
        backend: str = "auto",
        graphs: bool | None = None,
        compile: bool = False,
        native: bool | None = None,
        pad_rows: bool | None = None,
        deterministic: bool = False,
    ) -> None:
        if max_rows < 1:
            raise UsageError(f"a tree has 1 row or more, not {max_rows}")
        if slots < 1 or capacity < 1:
            raise UsageError(f"slots and capacity must be 1 or more, not {slots} and {capacity}")
        self.model = model.eval()
        self.device: torch.device = model.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # Triton launches on the current device, wherever its tensors are
        self.capacity = capacity
        self._pinned = deterministic
        self._padded = self.device.type == "cuda" if pad_rows is None else pad_rows
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._lengths: list[int | None] = [None] * slots  # cached tokens of each slot; None is a free slot
        self._followers: list[Follower] = []
        self._at_close: list[Callable[[], None]] = []
        self._collected = False
        self._assumed = [0] * slots  # cells of each slot that :meth:`assume` has given noise
        # Two at least: the lossless check steps two rows where no method steps more than one.
        self._max_rows = max(2, max_rows)
        self.native_attention: str = model.config._attn_implementation
        if self.native_attention == interface.NAME:
            raise ValueError("this model already serves an engine; close() that one first")
        self.attentions = Attentions(backend, model, pinned=deterministic)
        # Rows after the last position that a model has emit nothing that is kept: they sit on that one.
        positions = self.positions = checks.check_declared(model, capacity)
        self._plain = Program(model, TorchOps(), positions)  # of prefills, and the oracle
        self._program = self._plain  # until it is known whether the kernels take this model's heads
        self.sampling = sampling or Sampling()
        self._graphs = self._make_graphs(graphs)
        self._notes: list[str] = []
        self.rounding = checks.tolerance(model.dtype)
        reach = capacity + max_rows  # positions that rows may have: a last tree may start at the capacity
        self._products = skinny.SkinnyProducts(self.device, pinned=deterministic)

        def layer_code() -> LayerCode:
            captured = self._graphs is not None
            return LayerCode(model, compile=compile, native=native, captured=captured, products=self._products)

        self.code = layer_code()
        self._sums = WideSums()
        self._rotary = rotary.HeldRotary(model)
        #: Whether the first step of a shape pays for what later ones have: a capture, or kernels made for it. On a CPU
        #: it takes a few milliseconds more, which no warm-up is worth.
        self.first_steps_cost = compile or self.device.type != "cpu"
        self.attach()
        try:
            shapes, calls = self._layer_shapes()
            self.calls = calls  # what each layer's attention is
            checks.check_windows(model, calls.windows, reach)
            self.attentions.check_shapes(shapes, calls.heads)
            widths, free = memory.widths(model, shapes), memory.free_bytes(self.device)

            def use_attention() -> None:
                self._program = Program(model, self.attentions.ops(), positions)
                self.sampling = self._sampling
                dense = self.attentions.tree == "reference"
                room.assert_room(widths, self._max_rows, capacity, slots, free, dense=dense)

            use_attention()
            self.cache = StaticCache(shapes, slots, capacity + scratch_cells(max_rows), model.dtype, self.device)
            # What the model's own forward after a long text is given is a copy, for two branches, and made once more.
            most = None if free is None else (free - self.cache.nbytes) // max(1, 8 * int(widths.token_bytes))
            ends = (each for each in (capacity, positions, most) if each is not None)
            far = checks.far_lengths(model, min(ends))

            def check() -> None:
                self.rounding = checks.check_forward(model, self._probe, self.apart)
                checks.check_far(model, far, self._probe_far, self.apart)

            layer_check.check_layers(model, shapes, calls, self.attentions.backend("reference"), self.apart)
            try:
                self.code.settle(self.cache, calls, check)
            except Exception as error:
                ours = isinstance(error, SpecbenchError) and not isinstance(error, UnsupportedAttention)
                if ours or memory.ran_out(error) or not self.attentions.fall_back(error):
                    raise
                use_attention()
                self.detach()  # layer code notes the attention that the model has of its own
                self.code = layer_code()
                self.attach()
                self.code.settle(self.cache, calls, check)
        except BaseException as error:
            self.close()
            if isinstance(error, room.TreesTooLarge) or not memory.ran_out(error):
                with checks.refusing():  # whatever of a model's parts is not as it is in those that we know
                    raise
            raise EnvironmentRefused(
                f"no memory for a KV cache of {slots} × {capacity} tokens; lower --max-new-tokens or --concurrency"
            ) from error

    def _make_graphs(self, wanted: bool | None) -> StepGraphs | None:
        """None where steps are eager; ``_why_eager`` says why."""
        self._graphs_asked = wanted is True
        self._why_eager = "not asked for" if wanted is False else "graphs are for CUDA devices"
        if wanted is False or (wanted is None and self.device.type != "cuda"):
            return None
        return StepGraphs(
            self._captured_step, self._shape, self.slots, self._max_rows, self.device,
            graphs.cuda_capture(self.device), pinned=self._pinned,
        )  # fmt: skip

    def attach(self) -> None:
        """Gives the model the engine's attention and layers; :meth:`detach` takes them back."""
        self.model.set_attn_implementation(interface.NAME)
        self._rotary.attach()
        self.code.attach()

    def detach(self) -> None:
        """Gives the model back its own attention and layers, until :meth:`attach`."""
        self.code.detach()
        self._rotary.detach()
        self.model.set_attn_implementation(self.native_attention)

    def at_close(self, work: Callable[[], None]) -> None:
        """Runs ``work`` when the engine is closed, so that what was made for it on its device is freed with it."""
        self._at_close.append(work)

    def close(self) -> None:
        """Gives the model back and frees the KV cache and all graphs at once; the engine can do nothing any more.

        Graphs hold the engine's methods and the engine holds its graphs. Without this, such a circle would keep their
        memory until Python's collector runs, and the next engine would have to live next to it.
        """
        self.detach()
        self._sums.close()
        while self._at_close:
            self._at_close.pop()()
        self._followers.clear()
        self._graphs, self._why_eager = None, "the engine is closed"
        self.code.release()
        if hasattr(self, "cache"):  # not yet where its own making failed
            del self.cache

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The model as it is without an engine."""
        self.detach()
        try:
            yield
        finally:
            self.attach()

    @property
    def sampling(self) -> Sampling:
        """How next tokens are chosen."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._program.ops.set_sampling(sampling)

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
        """Occupies the lowest free slot, so that occupied slots stay together at the front."""
        slot = self._lengths.index(None)
        self._lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Releases a slot; its cells are overwritten by whoever comes next."""
        self._lengths[slot] = None

    # ------------------------------------------------------------------ steps

    def rewind(self, slot: int, length: int) -> None:
        """Forgets what an occupied slot holds behind its first ``length`` tokens."""
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"slot {slot} holds {self.length(slot)} tokens, not {length}")
        self._lengths[slot] = length

    def finite(self, slot: int) -> bool:
        """Whether the model came to numbers for what an occupied slot holds. Reads the device; off the clock only."""
        return self.cache.finite(slot, self.length(slot))

    def assume(self, slot: int, length: int) -> None:
        """Takes the first ``length`` cells of an occupied slot as filled, without a prefill: for timing steps there.

        What a step costs depends on how many tokens are cached and not on which. Cells that were never assumed before
        get noise first, since memory that was never written, or holds zeros only, can be faster than memory with data.
        What steps emit behind an assumed context means nothing.
        """
        if not 0 <= length <= self.capacity:
            raise ValueError(f"slot {slot} has room for {self.capacity} tokens, not {length}")
        self.length(slot)  # of a free slot it is an error
        assumed = self._assumed[slot]
        if length > assumed:
            self.cache.scatter_noise(slot, assumed, length)
            self._assumed[slot] = length
        self._lengths[slot] = length

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        tree: TokenTree | None = None,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
    ) -> StepResult:
        """Feeds a prompt to an occupied slot and emits what follows it.

        The last prompt token is the root of a tree, so that a method may send guesses along with the prompt.

        ``ids`` (at least one) are appended to what the slot holds. ``tree`` holds guesses under the last prompt token
        (``tree.tokens[0] == ids[-1]``). What follows a prompt is AR's token for every method: drafts with a proposal,
        too, are accepted only where they equal AR's.

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
            raise BadTree(f"the tree of a prefill starts at the last prompt token {ids[-1]}, not {tree.tokens[0]}")
        self._check_rows(tree)
        head = list(ids[:-1])
        hidden: list[Tensor] = []
        while head and len(head) + len(tree) > PREFILL_CHUNK:
            *chunk, last = head[:PREFILL_CHUNK]
            head = head[PREFILL_CHUNK:]
            chunked = self._prefill(slot, chunk, TokenTree.chain([last]), taps=taps).hidden
            hidden += [] if chunked is None else [chunked]
        result = self._prefill(slot, head, tree, top_k, taps)
        if hidden and result.hidden is not None:
            result = replace(result, hidden=torch.cat([*hidden, result.hidden]))
        return result

    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        probabilities: bool = False,
        phases: Phases | None = None,
        forced: Forced | None = None,
    ) -> dict[int, StepResult]:
        """One target forward over the trees of several slots: verify, accept, commit.

        A tree is accepted as far as it is what the target itself says with its noise. Above temperature 0 a tree that
        has a proposal is verified as a block (:mod:`specbench.engine.block`), after the forward and outside of its
        graph: rows of a chain stay where they are, whatever is accepted of it. With ``forced``, the result is ignored.

        Args:
            trees: tree of each slot to step; each root is that slot's last emitted token.
            forced: per slot, a next token for each row of its tree that takes the place of the computed one, or
                :data:`~specbench.decoding.tree.COMPUTED`. For simulated acceptance: all the work is done all the same.

        Raises:
            UsageError: a sequence has reached the capacity.
        """
        if probabilities and self.sampling.greedy:
            raise ValueError("at temperature 0 nothing is drawn, and so there are no probabilities")
        lengths, capacity, most = self._lengths, self.capacity, self._max_rows
        for slot, tree in trees.items():
            if len(tree.tokens) > most or (length := lengths[slot]) is None or length >= capacity:
                self._refuse(slot, tree)
        mark = phases.mark if phases else unmarked
        batch = Batch.of(trees, self._vocabulary)
        blocks = self._blocks(batch)
        attention, tall = self.attentions.of(trees.values())
        told = forced is not None
        if self._graphs is not None:
            kind = self._kind(attention, tall, top_k, taps, told, probabilities or bool(blocks))
            graph = self._graph(batch, kind, forced)
            if graph is not None:
                return self._replayed(graph, batch, blocks, forced, mark)
        kind = Kind(self.sampling, top_k, taps, told, attention, tall, probabilities or bool(blocks))
        try:
            return self._eager(batch, blocks, kind, forced, mark)
        except (RuntimeError, MemoryError) as error:
            if not memory.ran_out(error):
                raise
            raise room.TreesTooLarge(f"no memory left for a step of {batch.rows:,} rows") from error

    def within(self, positions: Tensor) -> Tensor:
        """Positions as the model takes them: those after its last one on that one."""
        return positions if self.positions is None else positions.clamp(max=self.positions - 1)

    @property
    def notes(self) -> list[str]:
        """What the user has to know: fast paths that were left out and steps that are not captured, a line each."""
        return [*self.attentions.notes, *self._notes]

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """So many tokens after a prompt as plain decoding writes them at temperature 0; off the clock, and eagerly."""
        sampling, self.sampling = self.sampling, Sampling()
        slot = self.alloc()
        try:
            found = [*self.prefill(slot, ids).emitted]
            while len(found) < tokens:
                tree = TokenTree.chain([found[-1]])
                attention, tall = self.attentions.of([tree])
                kind, batch = Kind(self.sampling, attention=attention, tall=tall), Batch.of({slot: tree})
                found += self._eager(batch, {}, kind, None, unmarked)[slot].emitted
            return found[:tokens]
        finally:
            self.free(slot)
            self.sampling = sampling

    def settle(self) -> None:
        """Returns when the device has nothing left to do."""
        graphs.settle(self.device)

    def prepare(
        self,
        max_rows: int,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        probabilities: bool = False,
        forced: bool = False,
        context: int = 0,
    ) -> None:
        """Captures and times every graph that trees of up to ``max_rows`` rows can need, so that no request pays.

        ``probabilities``: whether they will be asked for, or trees will have proposals; ``context``: cached tokens that
        step times are taken at.
        """
        if self._graphs is None:
            return
        assert all(length is None for length in self._lengths), "timing writes into every slot"
        if not self._collected:  # captures switch the collector off, and what it would free is memory that they need
            gc.collect()
            self._collected = True
        try:
            if (weights := self.code.weights()) and not self._products.why_not:  # before anything holds a kernel
                self._products.settle(weights, skinny.cuda_time(self.device))
            self.attentions.settle(lambda name: self._one_row_seconds(name, context))
            for steps in self.attentions.steps(max_rows, self.slots):
                wanted = probabilities and not self.sampling.greedy
                kind = self._kind(steps.attention, steps.tall, top_k, taps, forced, wanted)
                self._graphs.tune(steps, kind, min(context, self.capacity))
        except torch.OutOfMemoryError as error:
            raise EnvironmentRefused(
                "no memory left to capture steps in CUDA graphs; lower --concurrency, or use --graphs off"
            ) from error
        except graphs.CaptureFailed as error:
            if self._graphs_asked:
                raise
            self._graphs, self._why_eager = None, str(error)

    def pad_as(self, steps: Sequence[Mapping[str, Any]], products: Sequence[Mapping[str, Any]] = ()) -> None:
        """Pads rows as an earlier engine of the kind did, and attends and multiplies as it did, by what it reported.

        Other rows are other products, whose rounding can be another text; so a resumed run goes on as it began.
        """
        if self._graphs is None:
            return
        if products:
            self._products.keep(products)
        elif steps:
            self._products.leave("as when the run began")
        self._graphs.choices = steps
        for chain in {str(each["attention"]) for each in steps if each.get("chains")}:
            self.attentions.keep(chain)

    def multiply_as(self, products: Sequence[Mapping[str, Any]]) -> None:
        """Multiplies as an earlier engine did, by what it reported of its ``products``; times no product itself."""
        self._products.keep(products, only=True)

    @property
    def calibration_context(self) -> int:
        """Cached tokens of the steps that :meth:`step_seconds` times."""
        return min(CALIBRATION_CONTEXT, self.capacity - 1)

    def step_seconds(self, max_rows: int) -> list[tuple[int, float]]:
        """Measured (rows, seconds) of a step of one sequence, for rows up to the bucket of ``max_rows``.

        Trees of as many rows as a bucket has cost what the next smaller tree of that bucket costs. No slot may be in
        use; the steps are taken behind as many tokens as the capacity allows, at most :data:`CALIBRATION_CONTEXT`.
        """
        context = self.calibration_context
        self.prepare(max_rows, context=context)
        buckets = [rows for rows in ROW_BUCKETS if rows < max_rows] + [row_bucket(max_rows)]
        if self._graphs is not None:
            found = []
            for rows in buckets:
                kind = self._kind(self.attentions.tree, self.attentions.tall(min(rows, max_rows)), 0, (), False)
                found.append((rows, self._graphs.step_seconds(rows, kind)))
            return found
        slot = self.alloc()
        try:
            if context:
                self.prefill(slot, [0] * context)
            return [(rows, self._eager_seconds(slot, min(rows, max_rows))) for rows in buckets]
        finally:
            self.free(slot)

    def _eager_seconds(self, slot: int, rows: int) -> float:
        """Median time of a step of ``rows`` rows, without keeping it."""
        length, taken = self.length(slot), []
        for _ in range(_TIMED):
            started = time.perf_counter()
            self.step({slot: TokenTree.chain([0] * rows)})
            taken.append(time.perf_counter() - started)
            self.rewind(slot, length)
        return sorted(taken)[_TIMED // 2]

    def drafts(self, starts: Mapping[int, int], most: int, vocab: int) -> block.DrawnDrafts:
        """What draws drafts from this engine's probabilities, and knows what they were drawn from.

        ``starts``: slot of this engine -> position in its text of the root of the tree that is drafted for.
        """
        return block.DrawnDrafts(starts, most, vocab, self.sampling.seed, self.device)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Device work of a method's own, run as steps are: captured in a CUDA graph, or as it is.

        ``work`` launches the same operations on the same tensors at every call, and reads nothing on the host.
        """
        if self._graphs is not None:
            return self._graphs.capture(work)
        work()
        return work

    def products(self, weights: Mapping[skinny.Shape, Sequence[Tensor]]) -> skinny.SkinnyProducts:
        """What multiplies a draft head's rows, as the target's are multiplied.

        ``weights`` of a shape that the target has too are timed on the target's, which are more.
        """
        if self._graphs is not None and not self._products.why_not:
            self._products.settle({**weights, **self.code.weights()}, skinny.cuda_time(self.device))
        return self._products

    def follow(self, work: Follower) -> None:
        """Launches ``work`` behind every captured step with tapped layers, while the step is still running."""
        self._followers.append(work)

    def report(self) -> dict[str, Any]:
        """What the engine chose and what its captures cost, for the summary of a run."""
        found: dict[str, Any] = {**self.attentions.report(), **self.code.report()}
        if self.notes:
            found["notes"] = self.notes
        if self.device.type == "cuda":
            found["reduced_precision_sums"] = False
        if self._graphs is None:
            return {**found, "graphs": None, "why_eager": self._why_eager}
        captures = self._graphs.captures
        return {
            **found,
            "graphs": captures.count,
            "capture_s": captures.seconds,
            "capture_bytes": captures.bytes,
            "late_captures": captures.late,
            "products": self._products.report(),
            "why_no_products": self._products.why_not,
            "steps": [{**each, "chains": each["attention"] == self.attentions.chain} for each in self._graphs.curves()],
        }

    # ------------------------------------------------------------------ inside a step

    def _prefill(
        self, slot: int, head: list[int], tree: TokenTree, top_k: int = 0, taps: tuple[int, ...] = ()
    ) -> StepResult:
        """Feeds ``head`` and ``tree`` in one forward and commits both."""
        kind = Kind(self.sampling, top_k, taps)
        start, batch = self.length(slot), Batch.of({slot: tree}, self._vocabulary)
        before = torch.tensor(head, dtype=torch.int64, device=self.device) if head else None
        shape, attention = Shape(len(tree), self.slots), self.attentions.backend(self.attentions.of_prompt(tree))
        out = self._plain.run(
            self._packed(batch, shape), shape, kind, self.cache, attention,
            groups=batch.prompt(self._cached), head=before, commit=False,
        )  # fmt: skip
        outcome = Outcome(out.outcome.cpu().numpy(), shape, top_k)
        return self._commit(slot, start + len(head), tree, outcome.results(batch, out.hidden)[slot])

    def _graph(self, batch: Batch, kind: Kind, forced: Forced | None) -> StepGraph | None:
        """The graph for a step; None where it is to run eagerly, as one does that cannot be captured any more."""
        assert self._graphs is not None
        try:
            return self._graphs.step(batch, self._cached, kind, forced)
        except (RuntimeError, graphs.CaptureFailed) as error:
            if not isinstance(error, graphs.CaptureFailed) and not memory.ran_out(error):
                raise
            self._notes.append(f"steps of {batch.rows} rows run without a CUDA graph ({reason(error)})")
            return None

    def _eager(
        self, batch: Batch, blocks: Mapping[int, TokenTree], kind: Kind, forced: Forced | None, mark: Mark
    ) -> dict[int, StepResult]:
        """A step on exact shapes, as far as rows are not padded."""
        shape = self._shape(row_bucket(batch.rows) if self._padded else batch.rows, kind)
        out = self._program.run(
            self._packed(batch, shape, forced), shape, kind, self.cache,
            self.attentions.backend(kind.attention, kind.tall),
            groups=batch.groups(self._cached), commit=False, mark=mark,
        )  # fmt: skip
        verdicts = self._verdicts(batch, blocks, out.probabilities, forced)
        # The one host read of a step, but for verdicts.
        outcome = Outcome(out.outcome.cpu().numpy(), shape, kind.top_k)
        mark("accept")
        results = {
            slot: self._commit(slot, self.length(slot), batch.trees[slot], result)
            for slot, result in outcome.results(batch, out.hidden, out.probabilities, verdicts).items()
        }
        mark("commit")
        return results

    def _replayed(
        self,
        graph: StepGraph,
        batch: Batch,
        blocks: Mapping[int, TokenTree],
        forced: Forced | None,
        mark: Mark,
    ) -> dict[int, StepResult]:
        """The same step as a graph, its commit included."""
        mark("build")
        graph.launch()
        mark("forward")
        # Not where phases are told apart, or verdicts decide what is accepted.
        if graph.hidden is not None and mark is unmarked and not blocks:
            for follow in self._followers:
                follow(graph.running(batch))
        verdicts = self._verdicts(batch, blocks, graph.probabilities, forced)
        outcome = graph.outcome()
        results = outcome.results(batch, graph.hidden, graph.probabilities, verdicts)
        mark("accept")
        lengths = self._cached
        for slot, result in results.items():
            self._lengths[slot] = lengths[slot] + len(result.path)
        mark("commit")
        return results

    def _blocks(self, batch: Batch) -> dict[int, TokenTree]:
        """The trees of a step that are verified as blocks."""
        if self.sampling.greedy:
            return {}
        return {slot: tree for slot, tree in batch.trees.items() if tree.proposal is not None}

    def _verdicts(
        self, batch: Batch, blocks: Mapping[int, TokenTree], probabilities: Tensor | None, forced: Forced | None
    ) -> dict[int, block.Verdict]:
        """On those trees, as far as they count: the work is done for a forced one too."""
        if not blocks:
            return {}
        assert probabilities is not None
        p = dict(zip(batch.trees, batch.parts(probabilities), strict=True))
        found = block.verify(blocks, p, {slot: self.length(slot) for slot in blocks}, self.sampling.seed)
        return {slot: verdict for slot, verdict in found.items() if not (forced and slot in forced)}

    def _captured_step(self, shape: Shape, kind: Kind) -> Any:
        """The device work of a step, for capture."""

        def run(packed: Tensor) -> Computed:
            backend = self.attentions.backend(kind.attention, kind.tall)
            return self._program.run(packed, shape, kind, self.cache, backend)

        return run

    def _one_row_seconds(self, attention: str, context: int) -> float:
        """Time of a one-row step."""
        assert self._graphs is not None
        if attention != self.attentions.tree:
            self._compare_chains(attention, min(context, self.capacity - 1))
        kind = self._kind(attention, False, 0, (), False)
        self._graphs.tune(Steps(attention, False, 1, 1, 1), kind, min(context, self.capacity))
        return self._graphs.step_seconds(1, kind)

    def _shape(self, rows: int, kind: Kind) -> Shape:
        return Shape(rows, self.slots, self.attentions.height(rows, kind.attention, kind.tall))

    def _kind(
        self,
        attention: str,
        tall: bool,
        top_k: int,
        taps: tuple[int, ...],
        forced: bool,
        probabilities: bool = False,
    ) -> Kind:
        # With top-k the scores are made by torch, which bakes the sampling in; of probabilities it is the temperature.
        sampling = self.sampling if top_k else self._program.ops.same_graph(self.sampling)
        if probabilities:
            sampling = replace(sampling, temperature=self.sampling.temperature)
        return Kind(sampling, top_k, taps, forced, attention, tall, probabilities)

    @property
    def _cached(self) -> list[int]:
        """Cached tokens of all slots, 0 of a free one."""
        return [length or 0 for length in self._lengths]

    def _packed(self, batch: Batch, shape: Shape, forced: Forced | None = None) -> Tensor:
        packed = np.empty(shape.width_in, dtype=np.int32)
        pack.fill(packed, shape, batch, self._cached, forced)
        return torch.from_numpy(packed).to(self.device)

    def _commit(self, slot: int, start: int, tree: TokenTree, result: StepResult) -> StepResult:
        """Keeps the KV of the accepted rows of an eager step; ``start`` is the cell of the root."""
        rows = result.path
        if rows[-1] != len(rows) - 1:  # a path that is not already the first rows
            self.cache.commit(slot, start, torch.tensor(rows, dtype=torch.int64, device=self.device))
        self._lengths[slot] = start + len(rows)
        return result

    def _refuse(self, slot: int, tree: TokenTree) -> None:
        """Says why a tree cannot be stepped in a slot."""
        self._check_rows(tree)
        if self.length(slot) >= self.capacity:
            raise UsageError(
                f"a sequence has reached the end of its cache of {self.capacity} tokens; raise its capacity"
            )

    def _check_rows(self, tree: TokenTree) -> None:
        if len(tree) > self._max_rows:
            raise BadTree(f"a tree of {len(tree)} rows exceeds the row limit of {self._max_rows}; raise max_rows")

    # ------------------------------------------------------------------ checks at load time

    def _layer_shapes(self) -> tuple[dict[int, LayerShape], Calls]:
        """What each layer stores and asks of attention, learnt from one row."""
        recorder, calls = ShapeRecorder(), Calls()
        batch, shape = Batch.of({0: TokenTree.chain([0])}), Shape(1, self.slots)
        with checks.refusing():
            self._plain.logits(
                self._packed(batch, shape), shape, recorder, self.attentions.backend("reference"),
                groups=batch.groups(self._cached), calls=calls,
            )  # fmt: skip
        if not recorder.shapes:
            raise UsageError("this model keeps no KV cache that the engine can manage; it is not supported yet")
        return recorder.shapes, calls

    def _probe(self, prefix: Sequence[int], tree: TokenTree) -> Tensor:
        """Logits [rows, V] of ``tree`` over a cached ``prefix``, as a step of it runs."""
        slot = self.alloc()
        try:
            # Past the checks of a user's prompt: the scratch cells have room for it.
            self._prefill(slot, list(prefix[:-1]), TokenTree.chain([prefix[-1]]))
            return self._tree_logits(slot, tree)
        finally:
            self.free(slot)

    def _probe_far(self, length: int, tree: TokenTree) -> tuple[Tensor, checks.Stored]:
        """The same over ``length`` cells of noise, with what is in them: by layer [1, heads, length, size] each."""
        slot = self.alloc()
        try:
            self.assume(slot, length)
            held = {layer: self.cache.stored(layer) for layer in sorted(self.cache.shapes)}
            stored = {layer: (k[slot, None, :, :length], v[slot, None, :, :length]) for layer, (k, v) in held.items()}
            return self._tree_logits(slot, tree), {layer: (k.clone(), v.clone()) for layer, (k, v) in stored.items()}
        finally:
            self.cache.clear(slot, length + len(tree))
            self._assumed[slot] = 0
            self.free(slot)

    def _compare_chains(self, attention: str, length: int) -> None:
        """Holds the attention of chains against that of trees, after so many tokens."""
        slot = self.alloc()
        try:
            for rows in (1, min(3, self._max_rows)):
                self.assume(slot, length)
                chain = TokenTree.chain([at % self._vocabulary for at in range(rows)])
                expected = self._tree_logits(slot, chain).double()
                found = self._tree_logits(slot, chain, attention, tall=rows > 1).double()
                off = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)).max())
                if not off <= checks.FAR * self.rounding:
                    raise ArithmeticError(f"a chain of {rows} rows comes out {off:.2g} off")
        finally:
            self.cache.clear(slot, length + self._max_rows)
            self._assumed[slot] = 0
            self.free(slot)

    def _tree_logits(self, slot: int, tree: TokenTree, attention: str = "", tall: bool = True) -> Tensor:
        batch = Batch.of({slot: tree})
        kind = Kind(self.sampling, attention=attention or self.attentions.tree, tall=tall)
        shape = self._shape(row_bucket(batch.rows) if self._padded else batch.rows, kind)
        found = self._program.logits(
            self._packed(batch, shape), shape, self.cache, self.attentions.backend(kind.attention, kind.tall),
            groups=batch.groups(self._cached),
        )  # fmt: skip
        return found[: len(tree)]
