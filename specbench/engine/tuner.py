"""Capture and time the steps of an engine before its first request, and choose the fastest ones."""

from __future__ import annotations

import gc
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch

from specbench.common import EnvironmentRefused
from specbench.decoding import TokenTree, TypicalAcceptance
from specbench.engine import pack
from specbench.engine.attention.choice import Steps
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.checks import forward
from specbench.engine.fast_paths import WORTH
from specbench.engine.layers.code import LayerBackend
from specbench.engine.program import StepKind
from specbench.engine.stepper import EagerStepper, GraphStepper

#: Buckets up to this size are tried even for one row: a matrix product of a few rows can be faster than of one row.
_FEW = 16
_LATER = {"probabilities": False, "acceptance": None}  # values of kinds in reports of older versions
_REPLAYS, _EAGER_STEPS = 9, 5  # repetitions of a timed step; the median counts
_TURNS, _TURNS_S = 5, 5.0  # turns of timing eager steps of all sizes, and seconds after which no other begins


class Tuner:
    """Choose buckets, the attention backend of chains, and the matrix products of few rows.

    Args:
        rounding: relative error of scores to expect between two attention backends.
        pinned: always pad to the next bucket, regardless of measurements.
    """

    def __init__(
        self,
        graphs: GraphStepper,
        eager: EagerStepper,
        code: LayerBackend,
        max_rows: int,
        rounding: float,
        pinned: bool,
    ) -> None:
        self._graphs, self._eager, self._code, self._products = graphs, eager, code, code.products
        self._attentions, self._slots, self._max_rows = eager.attentions, eager.slots, max_rows
        self._rounding, self._pinned = rounding, pinned
        self._earlier: Sequence[Mapping[str, Any]] = ()
        self._seconds: dict[tuple[int, StepKind], float] = {}
        self._collected = False

    def keep(self, steps: Sequence[Mapping[str, Any]], products: Sequence[Mapping[str, Any]]) -> None:
        """Repeat the choices of an earlier engine, from its report."""
        if products:
            self._products.keep(products)
        elif steps:
            self._products.leave("as when the run began")
        self._earlier = steps
        for chain in {str(each["attention"]) for each in steps if each.get("chains")}:
            self._attentions.keep(chain)

    def prepare(
        self,
        max_rows: int,
        top_k: int = 0,
        taps: tuple[int, ...] = (),
        *,
        probabilities: bool = False,
        acceptance: TypicalAcceptance | None = None,
        forced: bool = False,
        context: int = 0,
    ) -> None:
        """Capture and time every graph that trees of up to ``max_rows`` rows can need; no slot may be in use."""
        assert all(length is None for length in self._slots.lengths), "timing writes into every slot"
        if not self._collected:  # captures disable the garbage collector but need the memory that it would free
            gc.collect()
            self._collected = True
        wanted = probabilities and not self._eager.sampling.greedy
        try:
            self._products.choose(self._code.weights())  # before a graph captures a kernel
            self._attentions.choose(lambda name: self._one_row_seconds(name, context))
            for steps in self._attentions.steps(max_rows, len(self._slots)):
                kind = self._eager.kind(steps.attention, steps.tall, top_k, taps, forced, wanted, acceptance)
                self.tune(steps, kind, min(context, self._slots.capacity))
        except torch.OutOfMemoryError as error:
            raise EnvironmentRefused(
                "no memory left to capture steps in CUDA graphs; lower --concurrency, or use --graphs off"
            ) from error

    def tune(self, steps: Steps, kind: StepKind, context: int) -> None:
        """Capture and time every bucket that these steps can need, and choose a bucket for each.

        Steps are padded to a larger bucket if that takes less time, which happens when a library's kernel for few rows
        is slow. So the baseline, too, gets the fastest step available.
        """
        fastest: tuple[float, int] | None = None
        buckets = self._buckets(steps.fewest, steps.widest * steps.sequences)
        earlier = self._earlier_choices(kind, buckets)
        for bucket in reversed(buckets):  # from large to small, which avoids fragmenting the memory pool
            seconds = self._time(bucket, steps.widest, kind, context)
            chosen = bucket
            if not self._pinned and fastest is not None and seconds > WORTH * fastest[0]:
                chosen = fastest[1]
            if fastest is None or seconds < fastest[0]:
                fastest = (seconds, bucket)
            self._graphs.padded_to[bucket, kind] = earlier.get(bucket, chosen)

    def step_seconds(self, max_rows: int, sequences: int = 1, context: int | None = None) -> list[tuple[int, float]]:
        """Measured (rows, seconds) of steps whose sequences have trees of a bucket's rows, after :meth:`prepare`.

        ``context``: cached tokens; None is that of :meth:`prepare`, which has timed the steps of one sequence.
        """
        curve = []
        for rows in buckets_to(max_rows):
            size = min(rows, max_rows)
            kind = self._eager.kind(self._attentions.tree, self._attentions.tall(size))
            if sequences == 1 and context is None:
                curve.append((rows, self._chosen_seconds(rows, kind)))
                continue
            graph = self._graphs.graph(self._graphs.padded_to[row_bucket(size * sequences), kind], kind)
            chains = pack.Batch.of({slot: TokenTree.chain([0] * size) for slot in range(sequences)})
            pack.fill(graph.input, graph.shape, chains, [context or 0] * len(self._slots))
            graph.run()
            curve.append((rows, median_seconds(graph.run, _REPLAYS)))
        return curve

    def report(self) -> dict[str, Any]:
        """Captures, measured times and choices, for the summary of a run."""
        curves: dict[StepKind, dict[int, float]] = defaultdict(dict)
        for (rows, kind), seconds in sorted(self._seconds.items(), key=lambda item: item[0][0]):
            curves[kind][rows] = seconds
        captures, padded_to = self._graphs.captures, self._graphs.padded_to
        return {
            "graphs": captures.count,
            "capture_s": captures.seconds,
            "capture_bytes": captures.bytes,
            "late_captures": captures.late,
            "products": self._products.report(),
            "why_no_products": self._products.why_not,
            "steps": [
                {
                    **_described(kind),
                    "step_s": by_rows,
                    "padded_to": {rows: padded_to[rows, kind] for rows in by_rows},
                    "chains": kind.attention == self._attentions.chain,
                }
                for kind, by_rows in curves.items()
            ],
        }

    def _buckets(self, fewest: int, most: int) -> list[int]:
        """Buckets that steps of ``fewest`` to ``most`` rows may be padded to, with larger ones tried for one row."""
        most = min(max(most, min(_FEW, self._max_rows)), ROW_BUCKETS[-1])
        return [bucket for bucket in ROW_BUCKETS if row_bucket(min(fewest, most)) <= bucket <= row_bucket(most)]

    def _earlier_choices(self, kind: StepKind, buckets: Collection[int]) -> Mapping[int, int]:
        """bucket -> the bucket that an earlier run padded it to, if that is in ``buckets`` and large enough."""
        mine = _described(kind)
        for choice in ({**_LATER, **each} for each in self._earlier):
            if all(choice.get(name) == value for name, value in mine.items()):
                pairs = [(int(rows), int(padded)) for rows, padded in choice["padded_to"].items()]
                # Any other bucket would be captured during a request, or would be too small.
                return {rows: padded for rows, padded in pairs if rows <= padded and padded in buckets}
        return {}

    def _chosen_seconds(self, rows: int, kind: StepKind) -> float:
        """Measured seconds of the chosen step for ``rows`` rows, host copies included."""
        return self._seconds[self._graphs.padded_to[row_bucket(rows), kind], kind]

    def _time(self, rows: int, widest: int, kind: StepKind, context: int) -> float:
        """Seconds of a step of ``rows`` rows, split into chains of ``widest`` rows; the last chain may be shorter."""
        if (rows, kind) not in self._seconds:
            slots, graph = len(self._slots), self._graphs.graph(rows, kind)
            sizes = [min(widest, rows - at) for at in range(0, rows, widest)][:slots]
            chains = pack.Batch.of({slot: TokenTree.chain([0] * size) for slot, size in enumerate(sizes)})
            pack.fill(graph.input, graph.shape, chains, [context] * slots)
            if not graph.captured:
                self._graphs.capture_graph(graph)
                self._graphs.failed.discard((rows, kind))
            graph.run()
            self._seconds[rows, kind] = median_seconds(graph.run, _REPLAYS)
        return self._seconds[rows, kind]

    def _one_row_seconds(self, attention: str, context: int) -> float:
        """Seconds of a one-row step with a backend, after checking it against the attention backend of trees."""
        if attention != self._attentions.tree:
            self._compare_chains(attention, min(context, self._slots.capacity - 1))
        kind = self._eager.kind(attention, False)
        self.tune(Steps(attention, False, 1, 1, 1), kind, min(context, self._slots.capacity))
        return self._chosen_seconds(1, kind)

    def _compare_chains(self, attention: str, length: int) -> None:
        """Raise ArithmeticError if logits of chains after ``length`` tokens differ from those of the trees' backend."""
        with self._eager.after_text(length) as slot:
            for rows in (1, min(3, self._max_rows)):
                chain = TokenTree.chain([at % self._eager.plain.vocabulary for at in range(rows)])
                expected = self._eager.logits(slot, chain)
                found = self._eager.logits(slot, chain, attention, tall=rows > 1)
                off = float(forward.relative_error(found, expected).max())
                if not off <= forward.FAR * self._rounding:
                    raise ArithmeticError(f"the logits of a chain of {rows} rows have a relative error of {off:.2g}")


def eager_step_seconds(stepper: EagerStepper, max_rows: int, sequences: int, context: int) -> list[tuple[int, float]]:
    """Measured (rows, seconds) of eager steps of some sequences after ``context`` tokens; needs as many free slots.

    All sizes are timed in turns, and the shortest time of each counts: other processes may take memory bandwidth for
    seconds, which slows steps of few rows most.
    """
    shortest, slots, until = dict[int, float](), stepper.slots, time.perf_counter() + _TURNS_S
    with ExitStack() as borrowed:
        taken = [borrowed.enter_context(slots.assumed(context)) for _ in range(sequences)]
        for turn in range(_TURNS):
            if turn and time.perf_counter() > until:
                break
            for bucket in buckets_to(max_rows):
                tree = TokenTree.chain([0] * min(bucket, max_rows))
                kind = stepper.kind(*stepper.attentions.of([tree]))

                def step(tree: TokenTree = tree, kind: StepKind = kind) -> None:
                    stepper.run(pack.Batch.of(dict.fromkeys(taken, tree)), kind)
                    for slot in taken:
                        slots.rewind(slot, context)

                shortest[bucket] = min(median_seconds(step, _EAGER_STEPS), shortest.get(bucket, math.inf))
    return [*shortest.items()]


def buckets_to(max_rows: int) -> list[int]:
    """Buckets up to the one for ``max_rows`` rows."""
    return [rows for rows in ROW_BUCKETS if rows < max_rows] + [row_bucket(max_rows)]


def median_seconds(work: Callable[[], object], times: int) -> float:
    """Median wall time in seconds of ``times`` repetitions of some work."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[times // 2]


def _described(kind: StepKind) -> dict[str, Any]:
    """A kind of step, as it is recorded in a report."""
    return {
        "attention": kind.attention,
        "tiles": "tall" if kind.tall else "short",
        "top_k": kind.top_k,
        "taps": list(kind.taps),
        "greedy": kind.sampling.greedy,
        "forced": kind.forced,
        "probabilities": kind.probabilities,
        "acceptance": None if kind.acceptance is None else asdict(kind.acceptance),
    }
