"""Step a batch of trees, eagerly or as one captured graph: one forward, then acceptance and commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specbench.decoding import Fill, FillResult, StepResult, TokenTree, TypicalAcceptance
from specbench.engine import block_verification, pack
from specbench.engine.attention.choice import Attentions
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.fast_paths import reason
from specbench.engine.graphs import Capture, CaptureFailed, Follower, LastProbabilities, StepGraph
from specbench.engine.logits.processors import TextRows
from specbench.engine.memory import ran_out
from specbench.engine.pack import Batch, FillBatch, Forced, Outcome, Shape
from specbench.engine.program import Computed, Mark, Program, StepKind, unmarked
from specbench.engine.sampler import Sampling
from specbench.engine.slots import Slots

_TEXT, _FIRST = 48, 4  # tokens of a short text, and of its beginning
PREFILL_CHUNK = 1024  # rows of one prefill forward; limits the dense mask to chunk × context


class EagerStepper:
    """Run steps without CUDA graphs.

    Args:
        plain: program for prefills, with torch operations only.
        program: program for steps.
        padded: pad the rows of a step to buckets; by default shapes are exact.
    """

    def __init__(
        self,
        plain: Program,
        program: Program,
        slots: Slots,
        attentions: Attentions,
        sampling: Sampling,
        *,
        padded: bool = False,
    ) -> None:
        self.plain, self.program, self.slots, self.attentions = plain, program, slots, attentions
        self._padded = padded
        self.sampling = sampling

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the next steps."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self.program.ops.set_sampling(sampling)

    def kind(
        self,
        attention: str,
        tall: bool,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        forced: bool = False,
        probabilities: bool = False,
        acceptance: TypicalAcceptance | None = None,
    ) -> StepKind:
        """Return the kind of a step, with those sampling parameters that a graph of the step would bake in."""
        acceptance = None if self._sampling.greedy else acceptance
        # With top-k, torch computes the scores, which bakes in all parameters, as processing does; probabilities bake
        # in the temperature.
        baked = bool(top_k) or self._sampling.processes
        sampling = self._sampling if baked else self.program.ops.same_graph(self._sampling)
        if probabilities or acceptance is not None:
            sampling = replace(sampling, temperature=self._sampling.temperature)
        return StepKind(sampling, top_k, taps, forced, attention, tall, probabilities, acceptance)

    def shape(self, rows: int, kind: StepKind) -> Shape:
        """Shape of the input and output arrays of a step of ``rows`` rows."""
        return Shape(rows, len(self.slots), self.attentions.height(rows, kind.attention, kind.tall))

    def run(
        self, batch: Batch, kind: StepKind, forced: Forced | None = None, mark: Mark = unmarked
    ) -> dict[int, StepResult]:
        """Run one step and return the result of each slot."""
        lengths = self.slots.cached
        shape = self.shape(row_bucket(batch.rows) if self._padded else batch.rows, kind)
        out = self.program.run(
            self._packed(batch, shape, forced), shape, kind, self.slots.cache,
            self.attentions.backend(kind.attention, kind.tall),
            groups=batch.groups(lengths), commit=False, mark=mark, texts=self._texts(batch),
        )  # fmt: skip
        verdicts = self.verify_blocks(batch, out.probabilities, forced)
        # The only host read of a step, apart from verdicts.
        outcome = Outcome(out.outcome.cpu().numpy(), shape, kind.top_k)
        mark("accept")
        results = outcome.results(batch, out.hidden, out.probabilities, verdicts)
        for slot, result in results.items():
            self.slots.commit(slot, lengths[slot], result.path)
        self._keep_states(batch, results)
        mark("commit")
        return results

    def fill_kind(self, batch: FillBatch, entropy: bool) -> StepKind:
        """Return the kind of a step of passes over masked positions."""
        attention, tall = self.attentions.tree, self.attentions.tall(max(batch.counts))
        return StepKind(self._sampling, 2 if entropy else 1, attention=attention, tall=tall, fill=batch.never)

    def fill(self, batch: FillBatch, kind: StepKind, mark: Mark = unmarked) -> dict[int, FillResult]:
        """Run one pass over masked positions and return the predictions for each slot."""
        shape = self.shape(row_bucket(batch.rows) if self._padded else batch.rows, kind)
        alone = len(batch.passes) == 1 and shape.rows == batch.rows
        out = self.program.fill(
            self._packed(batch, shape), shape, kind, self.slots.cache,
            self.attentions.backend(kind.attention, kind.tall), groups=batch.groups(),
            outputs=next(iter(batch.passes.values())).outputs if alone else None, mark=mark,
        )  # fmt: skip
        return self._filled(batch, out, shape, kind, mark)

    def read(self, slot: int, text: Fill, entropy: bool = False, mark: Mark = unmarked) -> FillResult:
        """Run a pass with any number of rows, such as that of a prompt, in parts of about :data:`PREFILL_CHUNK` rows.

        A part ends where no row so far sees a later cell.
        """
        outputs = text.outputs or len(text)
        ends, begin, most = [], 0, 0
        for row, seen in enumerate(text.sees[: len(text) - outputs], 1):
            most = max(most, seen)
            if row - begin >= PREFILL_CHUNK and most <= text.start + row:
                ends.append(row)
                begin = row
        kind, begin = self.fill_kind(FillBatch.of({slot: text}), entropy), 0
        for end in [*ends, len(text)]:
            last = end == len(text)
            part = Fill(
                text.tokens[begin:end], text.positions[begin:end], text.start + begin, text.sees[begin:end],
                keep=text.keep if last else None, outputs=outputs if last else 1,
            )  # fmt: skip
            batch, shape = FillBatch.of({slot: part}, self.plain.vocabulary), Shape(len(part), len(self.slots))
            out = self.plain.fill(
                self._packed(batch, shape), shape, kind, self.slots.cache, self.attentions.backend("reference"),
                groups=batch.groups(), outputs=part.outputs, mark=mark,
            )  # fmt: skip
            result = self._filled(batch, out, shape, kind, mark)
            begin = end
        return result[slot]

    def _filled(
        self, batch: FillBatch, out: Computed, shape: Shape, kind: StepKind, mark: Mark = unmarked
    ) -> dict[int, FillResult]:
        results = Outcome(out.outcome.cpu().numpy(), shape, kind.top_k).fills(batch)
        mark("accept")
        self.slots.keep(batch)
        mark("commit")
        return results

    def _texts(self, batch: Batch, head: Sequence[int] = ()) -> list[TextRows]:
        """The text before each tree, ``head`` included, if the sampling needs it."""
        if not self._sampling.needs_text:
            return []
        known, grammar = self.slots, self._sampling.grammar
        return [
            TextRows(slot, batch.first[slot], tree, [*known.texts[slot], *head], known.prompts[slot], grammar)
            for slot, tree in batch.trees.items()
        ]

    def _keep_states(self, batch: Batch, results: Mapping[int, StepResult], head: Sequence[int] = ()) -> None:
        """Commit the states of recurrent layers, and texts that later steps need."""
        recurrent = self.slots.cache.recurrent
        if recurrent is None and not self._sampling.needs_text:
            return
        if recurrent is not None:
            recurrent.commit({slot: result.path for slot, result in results.items()}, batch.first)
        for slot, result in results.items():
            tokens = batch.trees[slot].tokens
            self.slots.texts[slot] += [*head, *(tokens[row] for row in result.path)]

    def blocks(self, batch: Batch) -> dict[int, TokenTree]:
        """Trees of a step that are verified as blocks."""
        return {} if self._sampling.greedy else batch.proposals

    def verify_blocks(
        self, batch: Batch, probabilities: Tensor | None, forced: Forced | None
    ) -> dict[int, block_verification.Verdict]:
        """Verdicts on the blocks of a step. A forced block is verified too, so that it costs the same, and ignored."""
        if probabilities is None or not (blocks := self.blocks(batch)):
            return {}
        p = dict(zip(batch.trees, batch.parts(probabilities), strict=True))
        starts = {slot: self.slots.length(slot) for slot in blocks}
        verdicts = block_verification.verify(blocks, p, starts, self._sampling.seed)
        return {slot: verdict for slot, verdict in verdicts.items() if not (forced and slot in forced)}

    def prefill(
        self, slot: int, head: list[int], tree: TokenTree, top_k: int = 0, taps: tuple[int, ...] = ()
    ) -> StepResult:
        """Feed ``head``, the prompt without its last token, and the tree under that token; commit both."""
        hidden: list[Tensor] = []
        while head and len(head) + len(tree) > PREFILL_CHUNK:
            *chunk, last = head[:PREFILL_CHUNK]
            head = head[PREFILL_CHUNK:]
            result = self._prefill(slot, chunk, TokenTree.chain([last]), 0, taps)
            hidden += [] if result.hidden is None else [result.hidden]
        result = self._prefill(slot, head, tree, top_k, taps)
        if hidden and result.hidden is not None:
            result = replace(result, hidden=torch.cat([*hidden, result.hidden]))
        return result

    @contextmanager
    def after_text(self, length: int) -> Iterator[int]:
        """Borrow a free slot with ``length`` cached tokens, a short text repeated without its beginning, to compare
        forwards. After noise, a model can amplify rounding without limit."""
        with self.slots.scratch(length) as slot:
            text = [(53 * at + 7) % min(1000, self.plain.vocabulary) for at in range(min(length, _TEXT))]
            if text:
                self.prefill(slot, text[:-1], TokenTree.chain(text[-1:]))
                self.slots.cache.repeat(slot, min(_FIRST, len(text) - 1), len(text), length)
                self.slots.lengths[slot] = length
                if self.slots.cache.recurrent is not None:  # whose states are those of no such text
                    self.slots.cache.recurrent.clear(slot)
            yield slot

    def _prefill(self, slot: int, head: list[int], tree: TokenTree, top_k: int, taps: tuple[int, ...]) -> StepResult:
        start, batch = self.slots.length(slot), Batch.of({slot: tree}, self.plain.vocabulary)
        kind, shape = StepKind(self._sampling, top_k, taps), Shape(len(tree), len(self.slots))
        cache = self.slots.cache
        out = self.plain.run(
            self._packed(batch, shape), shape, kind, cache, self.attentions.backend(self.attentions.of_prompt(tree)),
            groups=batch.prompt(self.slots.cached), commit=False,
            head=torch.tensor(head, dtype=torch.int64, device=cache.device) if head else None,
            texts=self._texts(batch, head),
        )  # fmt: skip
        result = Outcome(out.outcome.cpu().numpy(), shape, top_k).results(batch, out.hidden)[slot]
        self.slots.commit(slot, start + len(head), result.path)
        self._keep_states(batch, {slot: result}, head)
        return result

    def logits(self, slot: int, tree: TokenTree, attention: str = "", tall: bool = True) -> Tensor:
        """Logits [rows, V] of a tree as a step computes them, without a commit."""
        batch = Batch.of({slot: tree})
        kind = StepKind(self._sampling, attention=attention or self.attentions.tree, tall=tall)
        shape = self.shape(row_bucket(batch.rows) if self._padded else batch.rows, kind)
        logits = self.program.logits(
            self._packed(batch, shape), shape, self.slots.cache, self.attentions.backend(kind.attention, kind.tall),
            groups=batch.groups(self.slots.cached),
        )  # fmt: skip
        return logits[: len(tree)]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run a method's own device work once; return a callable that runs it again."""
        work()
        return work

    def _packed(self, batch: Batch | FillBatch, shape: Shape, forced: Forced | None = None) -> Tensor:
        packed = np.empty(shape.width_in, dtype=np.int32)
        pack_batch(packed, shape, batch, self.slots.cached, forced)
        return torch.from_numpy(packed).to(self.slots.cache.device)


def pack_batch(
    packed: pack.Ints,
    shape: Shape,
    batch: Batch | FillBatch,
    lengths: Sequence[int],
    forced: Forced | None = None,
) -> None:
    """Write the input of a step, see :func:`specbench.engine.pack.fill`."""
    if isinstance(batch, FillBatch):
        pack.fill_passes(packed, shape, batch)
    else:
        pack.fill(packed, shape, batch, lengths, forced)


@dataclass
class Captures:
    """Cost of all captures; ``late`` counts graphs that were captured while a request waited."""

    count: int = 0
    late: int = 0
    seconds: float = 0.0
    bytes: int = 0


class GraphStepper:
    """Run a step, commit included, as one captured graph; steps without a graph run eagerly.

    Args:
        note: is called with a line for the user about steps that cannot be captured.

    Attributes:
        capture: captures device work, as :func:`specbench.engine.graphs.cuda_capture` does.
        padded_to: (bucket, kind) -> the bucket that such steps are padded to, if it is not the bucket itself.
        graphs: by (bucket, kind); captured when they are first needed.
        failed: each (bucket, kind) whose late capture raised an error.
        followers: device work that is launched after each step with tapped layers, while the step is still running.
    """

    def __init__(self, eager: EagerStepper, capture: Capture, note: Callable[[str], None]) -> None:
        self._eager, self.capture, self._note = eager, capture, note
        self._device = eager.slots.cache.device
        self._probabilities = LastProbabilities()
        self.graphs: dict[tuple[int, StepKind], StepGraph] = {}
        self.padded_to: dict[tuple[int, StepKind], int] = {}
        self.failed: set[tuple[int, StepKind]] = set()
        self.captures = Captures()
        self.followers: list[Follower] = []

    def run(
        self, batch: Batch, kind: StepKind, forced: Forced | None = None, mark: Mark = unmarked
    ) -> dict[int, StepResult]:
        """Run one step and return the result of each slot."""
        eager, slots = self._eager, self._eager.slots
        lengths = slots.cached
        graph = self._find(batch, kind, lengths, forced)
        if graph is None:
            return eager.run(batch, kind, forced, mark)
        mark("build")
        graph.launch()
        mark("forward")
        # Followers run neither while phases are timed nor when a verdict decides what is accepted.
        if graph.hidden is not None and mark is unmarked and not eager.blocks(batch):
            for follow in self.followers:
                follow(graph.running(batch))
        verdicts = eager.verify_blocks(batch, graph.probabilities, forced)
        results = graph.outcome().results(batch, graph.hidden, graph.probabilities, verdicts)
        mark("accept")
        for slot, result in results.items():
            slots.lengths[slot] = lengths[slot] + len(result.path)
        mark("commit")
        return results

    def fill(self, batch: FillBatch, kind: StepKind, mark: Mark = unmarked) -> dict[int, FillResult]:
        """Run one pass over masked positions and return the predictions for each slot."""
        graph = self._find(batch, kind, (), None)
        if graph is None:
            return self._eager.fill(batch, kind, mark)
        mark("build")
        graph.launch()
        mark("forward")
        results = graph.outcome().fills(batch)
        mark("accept")
        self._eager.slots.keep(batch)
        mark("commit")
        return results

    def _find(
        self, batch: Batch | FillBatch, kind: StepKind, lengths: Sequence[int], forced: Forced | None
    ) -> StepGraph | None:
        """Return the graph for a step, with its input filled in, or None if the step has to run eagerly."""
        if batch.rows > ROW_BUCKETS[-1] or self._eager.sampling.needs_text:
            return None
        rows = row_bucket(batch.rows)
        key = self.padded_to.get((rows, kind), rows), kind
        if key in self.failed:
            return None
        try:
            graph = self.graph(*key)
            pack_batch(graph.input, graph.shape, batch, lengths, forced)
            if not graph.captured:  # with the real input: the warm-up run of the capture is then this step
                self.capture_graph(graph)
                self.captures.late += 1
        except (RuntimeError, CaptureFailed) as error:
            self.failed.add(key)
            self.graphs.pop(key, None)
            if not isinstance(error, CaptureFailed) and not ran_out(error):
                raise
            self._note(f"steps of {batch.rows} rows run without a CUDA graph ({reason(error)})")
            return None
        return graph

    def graph(self, rows: int, kind: StepKind) -> StepGraph:
        """Return the graph of a bucket; a new one is not captured yet."""
        key, eager = (rows, kind), self._eager
        if key not in self.graphs:
            shape = eager.shape(rows, kind)
            # Not a method of this object, which would make a reference cycle with its graphs.
            forward = eager.program.run if kind.fill is None else eager.program.fill
            run = partial(
                forward, shape=shape, kind=kind, cache=eager.slots.cache,
                backend=eager.attentions.backend(kind.attention, kind.tall),
            )  # fmt: skip
            self.graphs[key] = StepGraph(run, shape, kind.top_k, self._device, self.capture, self._probabilities)
        return self.graphs[key]

    def capture_graph(self, graph: StepGraph) -> None:
        """Capture a graph with its current input, and count the cost."""
        started, before = time.perf_counter(), _reserved(self._device)
        graph.capture()
        self.captures.count += 1
        self.captures.seconds += time.perf_counter() - started
        self.captures.bytes += max(0, _reserved(self._device) - before)


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
