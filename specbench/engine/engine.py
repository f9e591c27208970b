"""Step the token trees of several sequences with one target forward each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused, UsageError
from specbench.decoding import BadTree, Fill, FillResult, StepResult, TokenTree, TypicalAcceptance
from specbench.engine import graphs as capturing
from specbench.engine import memory, memory_budget
from specbench.engine.attention.choice import Attentions
from specbench.engine.block_verification import DrawnDrafts
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.checks import declared
from specbench.engine.graphs import CaptureFailed, Follower, settle
from specbench.engine.layers.code import LayerBackend
from specbench.engine.layers.skinny import SkinnyProducts
from specbench.engine.layers.sums import WideSums
from specbench.engine.loading import load_stepper
from specbench.engine.pack import Batch, FillBatch, Forced
from specbench.engine.phases import Phases
from specbench.engine.program import unmarked
from specbench.engine.sampler import Sampling
from specbench.engine.stepper import GraphStepper
from specbench.engine.tuner import Tuner, eager_step_seconds

CALIBRATION_CONTEXT = 512  # cached tokens during the steps that :meth:`Engine.step_seconds` times


class Engine:
    """Runs token trees of several sequences through one transformers causal LM.

    Args:
        slots: sequences that can be stepped together.
        capacity: tokens a sequence may reach, prompt and output together.
        backend: attention backend, one of :data:`specbench.engine.attention.choice.NAMES`.
        graphs: capture steps in CUDA graphs; by default on CUDA, with eager steps for a model that cannot be captured.
        compile: run the model's layers through torch.compile, which fuses the operations between matrix products.
        native: run layers and LM head with our own compiled code for CPUs; by default where it is available.
        pad_rows: pad eager steps to :data:`~specbench.engine.buckets.ROW_BUCKETS`; by default on CUDA.
        deterministic: never let a measured time decide anything.

    Attributes:
        positions: number of positions the model has; None if the number is not limited.
        rounding: relative error of scores to expect when sums are added up in another order.

    Raises:
        UsageError: an argument outside its range, or an attention feature the engine does not support.
        EnvironmentRefused: the cache, or a step of the largest tree, does not fit in memory, or the device lacks a
            requested feature.
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
        self.model, self.capacity = model.eval(), capacity
        self.device: torch.device = model.device
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)  # Triton launches on the current device, even for tensors on another one
        # At least two: the lossless check steps two rows even if no method steps more than one.
        self._max_rows = max(2, max_rows)
        self._graphs: GraphStepper | None = None
        self._tuner: Tuner | None = None
        self._graphs_asked = graphs is True
        self._why_eager = "not requested" if graphs is False else "CUDA graphs need a CUDA device"
        self._notes: list[str] = []
        self._at_close: list[Callable[[], None]] = []
        captured = on_gpu if graphs is None else graphs
        products = SkinnyProducts(self.device, pinned=deterministic)
        self.code = LayerBackend(model, compile=compile, native=native, captured=captured, products=products)
        self.attentions = Attentions(backend, model, pinned=deterministic)
        # Rows after the model's last position never emit a token that is kept, so they all get the last position.
        self.positions = declared.check_declared(model, capacity)
        capture = capturing.cuda_capture(self.device) if captured else None
        #: Whether the first step of a shape pays for a capture or for compiling kernels. On a CPU the first step takes
        #: only a few milliseconds more, which is not worth a warm-up.
        self.first_steps_cost = compile or self.device.type != "cpu"
        self._sums = WideSums()
        self.attach()
        try:
            self._eager, self.calls, self.rounding = load_stepper(
                self.code, self.attentions, sampling or Sampling(), slots, capacity, self._max_rows, self.positions,
                padded=on_gpu if pad_rows is None else pad_rows,
            )  # fmt: skip
            self._slots, self.cache = self._eager.slots, self._eager.slots.cache
            recurrent = self.cache.recurrent
            if recurrent is not None and self._graphs_asked:
                raise UsageError(
                    "cannot capture steps of this model: it has recurrent layers, whose states the host moves; leave "
                    "--graphs out"
                )
            if recurrent is not None:
                self._why_eager = "the model has recurrent layers, whose states the host moves"
            elif capture is not None:
                self._graphs = GraphStepper(self._eager, capture, self._notes.append)
            if self._graphs is not None and self.sampling.needs_text:
                self._why_eager = "penalties and a grammar need the text before each row, which is on the host"
                if self._graphs_asked:
                    raise UsageError(f"cannot capture steps: {self._why_eager}; leave --graphs out")
                self._notes.append("steps with penalties or a grammar run without CUDA graphs")
            elif self._graphs is not None:
                self._tuner = Tuner(self._graphs, self._eager, self.code, self._max_rows, self.rounding, deterministic)
        except BaseException as error:
            self.close()
            if isinstance(error, memory_budget.TreesTooLarge) or not memory.ran_out(error):
                with declared.refusing():  # a part of the model differs from all models that we know
                    raise
            raise EnvironmentRefused(
                f"no memory for a KV cache of {slots} × {capacity} tokens; lower --max-new-tokens or --concurrency"
            ) from error

    def attach(self) -> None:
        """Give the model the engine's attention and layers; :meth:`detach` undoes it."""
        self.code.attach()

    def detach(self) -> None:
        """Give the model back its own attention and layers, until :meth:`attach`."""
        self.code.detach()

    def detached(self) -> AbstractContextManager[None]:
        """Context manager in which the model runs its own attention and layers."""
        return self.code.detached()

    def at_close(self, work: Callable[[], None]) -> None:
        """Run ``work`` when the engine is closed, to free device memory that was allocated for the engine."""
        self._at_close.append(work)

    def close(self) -> None:
        """Detach from the model and free the KV cache and all graphs at once; the engine cannot be used afterwards.

        Follower work of a method refers to the engine, and the engine's graphs refer to that work. Without an explicit
        close, this reference cycle would keep the memory until Python's garbage collector runs, while the next engine
        already needs it.
        """
        self.detach()
        self._sums.close()
        while self._at_close:
            self._at_close.pop()()
        self._graphs = self._tuner = None
        self._why_eager = "the engine is closed"
        self.code.release()
        for name in ("cache", "_slots", "_eager"):  # absent if the constructor failed
            self.__dict__.pop(name, None)

    # ------------------------------------------------------------------ slots

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._slots)

    def length(self, slot: int) -> int:
        """Number of cached tokens of an occupied slot."""
        return self._slots.length(slot)

    def text(self, slot: int) -> Sequence[int]:
        """Committed tokens of an occupied slot; known only if steps need them (:class:`.slots.Slots`)."""
        return self._slots.texts[slot]

    def alloc(self) -> int:
        """Occupy the lowest free slot."""
        return self._slots.alloc()

    def free(self, slot: int) -> None:
        """Release a slot."""
        self._slots.free(slot)

    def rewind(self, slot: int, length: int) -> None:
        """Drop all but the first ``length`` tokens of an occupied slot.

        A model with recurrent layers reads the remaining text again.
        """
        text = self._slots.texts[slot][:length]
        if self.cache.recurrent is None or length == self.length(slot) or len(text) < length:
            self._slots.rewind(slot, length)
            return
        self._slots.restart(slot)
        if text:
            self._eager.prefill(slot, text[:-1], TokenTree.chain(text[-1:]))

    def assume(self, slot: int, length: int) -> None:
        """Treat the first ``length`` cells of an occupied slot as filled without a prefill, to time steps there."""
        self._slots.assume(slot, length)

    def finite(self, slot: int) -> bool:
        """Whether an occupied slot's cache has neither NaN nor infinity; waits for the device, so never time it."""
        return self.cache.finite(slot, self.length(slot))

    # ------------------------------------------------------------------ steps

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the next steps."""
        return self._eager.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._eager.sampling = sampling

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        tree: TokenTree | None = None,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        prompt: int | None = None,
    ) -> StepResult:
        """Feed a prompt to an occupied slot and emit the tokens that follow it.

        The last prompt token is the root of a tree, so that a method may send draft tokens along with the prompt.

        ``ids`` (at least one) are appended to the tokens in the slot. ``tree`` holds draft tokens under the last prompt
        token (``tree.tokens[0] == ids[-1]``). Every method emits AR's tokens here: even drafts with a proposal are
        accepted only if they equal AR's tokens.

        ``prompt``: tokens of the sequence that are no output, for penalties and grammars; by default all until here.

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
        self._slots.prompts[slot] = self.length(slot) + len(ids) if prompt is None else prompt
        return self._eager.prefill(slot, list(ids[:-1]), tree, top_k, taps)

    def step(
        self,
        trees: Mapping[int, TokenTree],
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        probabilities: bool = False,
        acceptance: TypicalAcceptance | None = None,
        phases: Phases | None = None,
        forced: Forced | None = None,
    ) -> dict[int, StepResult]:
        """One target forward over the trees of several slots: verify, accept, commit.

        Draft tokens are accepted while they equal the tokens that the target itself samples with its noise. Above
        temperature 0 a tree with a proposal is verified as a block (:mod:`.block_verification`), after the forward and
        outside its graph: the accepted rows of a chain are always the first ones, so none has to be moved. For slots in
        ``forced``, block verification still runs but its result is ignored.

        Args:
            acceptance: rule that accepts drafts above temperature 0 instead.
            trees: tree of each slot to step; each root is that slot's last emitted token.
            forced: per slot, for each row of its tree a next token that replaces the computed one, or
                :data:`~specbench.decoding.tree.COMPUTED`. For simulated acceptance, which does all the work of a step.

        Raises:
            UsageError: a sequence has reached the capacity.
        """
        eager, lengths, capacity, most = self._eager, self._slots.lengths, self.capacity, self._max_rows
        for slot, tree in trees.items():
            if len(tree.tokens) > most or (length := lengths[slot]) is None or length >= capacity:
                self._refuse(slot, tree)
        batch = Batch.of(trees, eager.plain.vocabulary)
        attention, tall = self.attentions.of(trees.values())
        drawn = probabilities or bool(eager.blocks(batch))
        kind = eager.kind(attention, tall, top_k, taps, forced is not None, drawn, acceptance)
        try:
            return (self._graphs or eager).run(batch, kind, forced, phases.mark if phases else unmarked)
        except (RuntimeError, MemoryError) as error:
            if not memory.ran_out(error):
                raise
            raise memory_budget.TreesTooLarge(f"out of memory in a step of {batch.rows:,} rows") from error

    def fill(
        self, passes: Mapping[int, Fill], *, entropy: bool = False, phases: Phases | None = None
    ) -> dict[int, FillResult]:
        """One forward over masked positions of several slots.

        A pass with more rows than a step may have, or with an order of rows that kernels do not expect, runs alone.

        Raises:
            UsageError: the model or the sampling does not allow such passes, or a slot's cells are used up.
        """
        self._check_fills(passes)
        mark = phases.mark if phases else unmarked
        small = {slot: each for slot, each in passes.items() if not self._runs_alone(each)}
        try:
            found = {
                slot: self._eager.read(slot, each, entropy, mark) for slot, each in passes.items() if slot not in small
            }
            if small:
                batch = FillBatch.of(small, self._eager.plain.vocabulary)
                kind = self._eager.fill_kind(batch, entropy)
                found |= (self._graphs or self._eager).fill(batch, kind, mark)
        except (RuntimeError, MemoryError) as error:
            if not memory.ran_out(error):
                raise
            rows = sum(map(len, passes.values()))
            raise memory_budget.TreesTooLarge(f"out of memory in a pass of {rows:,} rows") from error
        return found

    def _runs_alone(self, made: Fill) -> bool:
        """Whether a pass is not part of a step: too many rows, or an order that kernels do not expect."""
        return len(made) > self._max_rows or not made.ordered

    def _check_fills(self, passes: Mapping[int, Fill]) -> None:
        """Raise the error that explains why a pass over masked positions cannot run."""
        if self.cache.recurrent is not None or any(how.sight.limited for how in self.calls.layers.values()):
            raise UsageError(
                "cannot fill masked blocks with this model: some of its layers do not see the whole text; choose a "
                "model with full attention in every layer"
            )
        if self.sampling.processes:
            raise UsageError(
                "cannot fill masked blocks with penalties, min-p, a logit bias or a grammar: they depend on a text "
                "that has no gaps; leave them out"
            )
        for slot, each in passes.items():
            self.length(slot)  # raises for a free slot
            # Kernels read a cell for each row after the cells that all rows see, though no row sees these.
            after = each.start if self._runs_alone(each) else max(each.start, each.least)
            if after + len(each) >= self.cache.capacity:
                raise UsageError(
                    f"a sequence has reached the end of its cache of {self.capacity} tokens; raise its capacity"
                )

    def _refuse(self, slot: int, tree: TokenTree) -> None:
        """Raise the error that explains why a tree cannot be stepped in a slot."""
        self._check_rows(tree)
        if self.length(slot) >= self.capacity:
            raise UsageError(
                f"a sequence has reached the end of its cache of {self.capacity} tokens; raise its capacity"
            )

    def _check_rows(self, tree: TokenTree) -> None:
        if len(tree) > self._max_rows:
            raise BadTree(f"a tree of {len(tree)} rows exceeds the row limit of {self._max_rows}; raise max_rows")

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Decode ``tokens`` tokens after a prompt autoregressively at temperature 0, in eager steps; not for timing."""
        sampling, self.sampling = self.sampling, Sampling()
        try:
            with self._slots.borrowed() as slot:
                emitted = [*self.prefill(slot, ids).emitted]
                while len(emitted) < tokens:
                    batch = Batch.of({slot: TokenTree.chain([emitted[-1]])})
                    kind = self._eager.kind(*self.attentions.of(batch.trees.values()))
                    emitted += self._eager.run(batch, kind)[slot].emitted
            return emitted[:tokens]
        finally:
            self.sampling = sampling

    def settle(self) -> None:
        """Wait until the device has finished all work."""
        settle(self.device)

    # ------------------------------------------------------------------ for methods and runs

    def prepare(
        self,
        max_rows: int,
        *,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        probabilities: bool = False,
        acceptance: TypicalAcceptance | None = None,
        forced: bool = False,
        context: int = 0,
    ) -> None:
        """Capture and time every graph that trees of up to ``max_rows`` rows can need, before the first request.

        ``probabilities``: whether steps will return probabilities or trees will have proposals; ``context``: number of
        cached tokens during the timed steps.
        """
        if self._tuner is None:
            return
        try:
            self._tuner.prepare(
                max_rows,
                top_k,
                taps,
                probabilities=probabilities,
                acceptance=acceptance,
                forced=forced,
                context=context,
            )
        except CaptureFailed as error:
            if self._graphs_asked:
                raise
            self._graphs = self._tuner = None
            self._why_eager = str(error)

    def pad_as(self, steps: Sequence[Mapping[str, Any]], products: Sequence[Mapping[str, Any]] = ()) -> None:
        """Repeat an earlier engine's choices of padding, attention and matrix products, from its report.

        Other choices round differently and could change the text, so a resumed run must keep those it began with.
        """
        if self._tuner is not None:
            self._tuner.keep(steps, products)

    def multiply_as(self, products: Sequence[Mapping[str, Any]]) -> None:
        """Repeat an earlier engine's choice of matrix products, from its report, without timing any product."""
        self.code.products.keep(products, only=True)

    @property
    def calibration_context(self) -> int:
        """Cached tokens during the steps that :meth:`step_seconds` times."""
        return min(CALIBRATION_CONTEXT, self.capacity - 1)

    def step_seconds(self, max_rows: int, sequences: int = 1, context: int = 0) -> list[tuple[int, float]]:
        """Measured (rows, seconds) of a step, for every bucket up to that of ``max_rows``.

        All trees that are padded to the same bucket cost the same. No slot may be in use.

        Args:
            sequences: number of sequences that each have a tree of so many rows.
            context: cached tokens of each; 0 is :attr:`calibration_context`.
        """
        context = min(context, self.capacity - 1) or self.calibration_context
        self.prepare(max_rows, context=self.calibration_context)
        if self._tuner is not None:
            timed = sequences == 1 and context == self.calibration_context
            return self._tuner.step_seconds(max_rows, sequences, None if timed else context)
        return eager_step_seconds(self._eager, max_rows, sequences, context)

    def drafts(self, starts: Mapping[int, int], most: int, vocab: int) -> DrawnDrafts:
        """Return an object that samples drafts from this engine's probabilities and keeps their distributions.

        ``starts``: slot of this engine -> text position of the root of the tree that is drafted.
        """
        return DrawnDrafts(starts, most, vocab, self.sampling.seed, self.device)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a callable that runs a method's own device work: as a CUDA graph if steps are captured, else eagerly.

        ``work`` must launch the same operations on the same tensors at every call and never wait for the device.
        """
        return (self._graphs or self._eager).capture(work)

    def follow(self, work: Follower) -> None:
        """Launch ``work`` after every captured step with tapped layers, while the step is still running."""
        if self._graphs is not None:
            self._graphs.followers.append(work)

    def products(self, weights: Mapping[tuple[int, int], Sequence[Tensor]]) -> SkinnyProducts:
        """Return the matrix products for a draft head, which are chosen like those of the target.

        ``weights`` of a shape that the target has too are timed on the target's weights, because there are more.
        """
        if self._graphs is not None:
            self.code.products.choose({**weights, **self.code.weights()})
        return self.code.products

    @property
    def notes(self) -> list[str]:
        """Lines for the user: fast paths that are not used and steps that are not captured."""
        return [*self.attentions.notes, *self._notes]

    def report(self) -> dict[str, Any]:
        """The engine's choices and the cost of its captures, for the summary of a run."""
        found: dict[str, Any] = {**self.attentions.report(), **self.code.report()}
        if self.notes:
            found["notes"] = self.notes
        if self.cache.recurrent is not None:
            found["recurrent"] = {"layers": len(self.cache.recurrent), "state_bytes": self.cache.recurrent.nbytes}
        if self.device.type == "cuda":
            found["reduced_precision_sums"] = False
        if self._tuner is None:
            return {**found, "graphs": None, "why_eager": self._why_eager}
        return {**found, **self._tuner.report()}
