"""The engine: slots, and one target forward per step over the token tree of each (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused, UsageError
from specbench.decoding import BadTree, StepResult, TokenTree
from specbench.engine import graphs as capturing
from specbench.engine import memory, memory_budget
from specbench.engine.attention.choice import Attentions
from specbench.engine.block_verification import DrawnDrafts
from specbench.engine.buckets import ROW_BUCKETS
from specbench.engine.checks import declared
from specbench.engine.graphs import CaptureFailed, Follower, settle
from specbench.engine.layers.code import LayerCode
from specbench.engine.layers.skinny import SkinnyProducts
from specbench.engine.layers.sums import WideSums
from specbench.engine.loading import load_stepper
from specbench.engine.pack import Batch, Forced
from specbench.engine.phases import Phases
from specbench.engine.program import unmarked
from specbench.engine.sampler import Sampling
from specbench.engine.stepper import GraphStepper
from specbench.engine.tuner import Tuner, eager_step_seconds

CALIBRATION_CONTEXT = 512  # cached tokens of the steps that :meth:`Engine.step_seconds` times


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
        pad_rows: pad eager steps to :data:`~specbench.engine.buckets.ROW_BUCKETS`; default is on for CUDA.
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
        self.model, self.capacity = model.eval(), capacity
        self.device: torch.device = model.device
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)  # Triton launches on the current device, wherever its tensors are
        # Two at least: the lossless check steps two rows where no method steps more than one.
        self._max_rows = max(2, max_rows)
        self._graphs: GraphStepper | None = None
        self._tuner: Tuner | None = None
        self._graphs_asked = graphs is True
        self._why_eager = "not asked for" if graphs is False else "graphs are for CUDA devices"
        self._notes: list[str] = []
        self._at_close: list[Callable[[], None]] = []
        captured = on_gpu if graphs is None else graphs
        products = SkinnyProducts(self.device, pinned=deterministic)
        self.code = LayerCode(model, compile=compile, native=native, captured=captured, products=products)
        self.attentions = Attentions(backend, model, pinned=deterministic)
        # Rows after the last position that a model has emit nothing that is kept: they sit on that one.
        self.positions = declared.check_declared(model, capacity)
        capture = capturing.cuda_capture(self.device) if captured else None
        #: Whether the first step of a shape pays for what later ones have: a capture, or kernels made for it. On a CPU
        #: it takes a few milliseconds more, which no warm-up is worth.
        self.first_steps_cost = compile or self.device.type != "cpu"
        self._sums = WideSums()
        self.attach()
        try:
            self._eager, self.calls, self.rounding = load_stepper(
                self.code, self.attentions, sampling or Sampling(), slots, capacity, self._max_rows, self.positions,
                padded=on_gpu if pad_rows is None else pad_rows,
            )  # fmt: skip
            self._slots, self.cache = self._eager.slots, self._eager.slots.cache
            if capture is not None:
                self._graphs = GraphStepper(self._eager, capture, self._notes.append)
                self._tuner = Tuner(self._graphs, self._eager, self.code, self._max_rows, self.rounding, deterministic)
        except BaseException as error:
            self.close()
            if isinstance(error, memory_budget.TreesTooLarge) or not memory.ran_out(error):
                with declared.refusing():  # whatever of a model's parts is not as it is in those that we know
                    raise
            raise EnvironmentRefused(
                f"no memory for a KV cache of {slots} × {capacity} tokens; lower --max-new-tokens or --concurrency"
            ) from error

    def attach(self) -> None:
        """Gives the model the engine's attention and layers; :meth:`detach` takes them back."""
        self.code.attach()

    def detach(self) -> None:
        """Gives the model back its own attention and layers, until :meth:`attach`."""
        self.code.detach()

    def detached(self) -> AbstractContextManager[None]:
        """The model as it is without an engine."""
        return self.code.detached()

    def at_close(self, work: Callable[[], None]) -> None:
        """Runs ``work`` when the engine is closed, so that what was made for it on its device is freed with it."""
        self._at_close.append(work)

    def close(self) -> None:
        """Gives the model back and frees the KV cache and all graphs at once; the engine can do nothing any more.

        What a method launches after a step holds the engine, and the engine's graphs hold that. Without this, such a
        circle would keep their memory until Python's collector runs, and the next engine would live next to it.
        """
        self.detach()
        self._sums.close()
        while self._at_close:
            self._at_close.pop()()
        self._graphs = self._tuner = None
        self._why_eager = "the engine is closed"
        self.code.release()
        for name in ("cache", "_slots", "_eager"):  # as far as its making came
            self.__dict__.pop(name, None)

    # ------------------------------------------------------------------ slots

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._slots)

    def length(self, slot: int) -> int:
        """Cached tokens of an occupied slot."""
        return self._slots.length(slot)

    def alloc(self) -> int:
        """Occupies the lowest free slot."""
        return self._slots.alloc()

    def free(self, slot: int) -> None:
        """Releases a slot."""
        self._slots.free(slot)

    def rewind(self, slot: int, length: int) -> None:
        """Forgets what an occupied slot holds after its first ``length`` tokens."""
        self._slots.rewind(slot, length)

    def assume(self, slot: int, length: int) -> None:
        """Takes the first ``length`` cells of an occupied slot as filled, without a prefill: for timing steps there."""
        self._slots.assume(slot, length)

    def finite(self, slot: int) -> bool:
        """Whether the model came to numbers for what an occupied slot holds. Reads the device; off the clock only."""
        return self.cache.finite(slot, self.length(slot))

    # ------------------------------------------------------------------ steps

    @property
    def sampling(self) -> Sampling:
        """How next tokens are chosen."""
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
        return self._eager.prefill(slot, list(ids[:-1]), tree, top_k, taps)

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
        has a proposal is verified as a block (:mod:`.block_verification`), after the forward and outside of its graph:
        rows of a chain stay where they are, whatever is accepted of it. With ``forced``, the result is ignored.

        Args:
            trees: tree of each slot to step; each root is that slot's last emitted token.
            forced: per slot, a next token for each row of its tree that takes the place of the computed one, or
                :data:`~specbench.decoding.tree.COMPUTED`. For simulated acceptance: all the work is done all the same.

        Raises:
            UsageError: a sequence has reached the capacity.
        """
        eager, lengths, capacity, most = self._eager, self._slots.lengths, self.capacity, self._max_rows
        if probabilities and eager.sampling.greedy:
            raise ValueError("at temperature 0 nothing is drawn, and so there are no probabilities")
        for slot, tree in trees.items():
            if len(tree.tokens) > most or (length := lengths[slot]) is None or length >= capacity:
                self._refuse(slot, tree)
        batch = Batch.of(trees, eager.plain.vocabulary)
        attention, tall = self.attentions.of(trees.values())
        drawn = probabilities or bool(eager.blocks(batch))
        kind = eager.kind(attention, tall, top_k, taps, forced is not None, drawn)
        try:
            return (self._graphs or eager).run(batch, kind, forced, phases.mark if phases else unmarked)
        except (RuntimeError, MemoryError) as error:
            if not memory.ran_out(error):
                raise
            raise memory_budget.TreesTooLarge(f"no memory left for a step of {batch.rows:,} rows") from error

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

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """So many tokens after a prompt as plain decoding writes them at temperature 0; off the clock, and eagerly."""
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
        """Returns when the device has nothing left to do."""
        settle(self.device)

    # ------------------------------------------------------------------ what methods and runs ask for

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
        if self._tuner is None:
            return
        try:
            self._tuner.prepare(max_rows, top_k, taps, probabilities=probabilities, forced=forced, context=context)
        except CaptureFailed as error:
            if self._graphs_asked:
                raise
            self._graphs = self._tuner = None
            self._why_eager = str(error)

    def pad_as(self, steps: Sequence[Mapping[str, Any]], products: Sequence[Mapping[str, Any]] = ()) -> None:
        """Pads rows as an earlier engine of the kind did, and attends and multiplies as it did, by what it reported.

        Other rows are other products, whose rounding can be another text; so a resumed run goes on as it began.
        """
        if self._tuner is not None:
            self._tuner.keep(steps, products)

    def multiply_as(self, products: Sequence[Mapping[str, Any]]) -> None:
        """Multiplies as an earlier engine did, by what it reported of its ``products``; times no product itself."""
        self.code.products.keep(products, only=True)

    @property
    def calibration_context(self) -> int:
        """Cached tokens of the steps that :meth:`step_seconds` times."""
        return min(CALIBRATION_CONTEXT, self.capacity - 1)

    def step_seconds(self, max_rows: int) -> list[tuple[int, float]]:
        """Measured (rows, seconds) of a step of one sequence, for rows up to the bucket of ``max_rows``.

        Trees of as many rows as a bucket has cost what the next smaller tree of that bucket costs. No slot may be in
        use; the steps are taken after as many tokens as the capacity allows, at most :data:`CALIBRATION_CONTEXT`.
        """
        self.prepare(max_rows, context=self.calibration_context)
        if self._tuner is not None:
            return self._tuner.step_seconds(max_rows)
        return eager_step_seconds(self._eager, max_rows, self.calibration_context)

    def drafts(self, starts: Mapping[int, int], most: int, vocab: int) -> DrawnDrafts:
        """What draws drafts from this engine's probabilities, and knows what they were drawn from.

        ``starts``: slot of this engine -> position in its text of the root of the tree that is drafted for.
        """
        return DrawnDrafts(starts, most, vocab, self.sampling.seed, self.device)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Device work of a method's own, run as steps are: captured in a CUDA graph, or as it is.

        ``work`` launches the same operations on the same tensors at every call, and reads nothing on the host.
        """
        return (self._graphs or self._eager).capture(work)

    def follow(self, work: Follower) -> None:
        """Launches ``work`` after every captured step with tapped layers, while the step is still running."""
        if self._graphs is not None:
            self._graphs.followers.append(work)

    def products(self, weights: Mapping[tuple[int, int], Sequence[Tensor]]) -> SkinnyProducts:
        """What multiplies a draft head's rows, as the target's are multiplied.

        ``weights`` of a shape that the target has too are timed on the target's, which are more.
        """
        if self._graphs is not None:
            self.code.products.choose({**weights, **self.code.weights()})
        return self.code.products

    @property
    def notes(self) -> list[str]:
        """What the user has to know: fast paths that were left out and steps that are not captured, a line each."""
        return [*self.attentions.notes, *self._notes]

    def report(self) -> dict[str, Any]:
        """What the engine chose and what its captures cost, for the summary of a run."""
        found: dict[str, Any] = {**self.attentions.report(), **self.code.report()}
        if self.notes:
            found["notes"] = self.notes
        if self.device.type == "cuda":
            found["reduced_precision_sums"] = False
        if self._tuner is None:
            return {**found, "graphs": None, "why_eager": self._why_eager}
        return {**found, **self._tuner.report()}
