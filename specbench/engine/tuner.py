"""Tuner: captures the steps of an engine before its first request, times them, and chooses by those times."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from specbench.common import EnvironmentRefused
from specbench.decoding import TokenTree
from specbench.engine import pack
from specbench.engine.attention.choice import Steps
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.checks import forward
from specbench.engine.fast_paths import WORTH
from specbench.engine.layers.code import LayerCode
from specbench.engine.program import StepKind
from specbench.engine.stepper import EagerStepper, GraphStepper

#: Buckets that are tried in place of one row: a matrix product of a few rows can be faster than one of one.
_FEW = 16
_REPLAYS, _EAGER_STEPS = 9, 5  # of which a step time is the median


class Tuner:
    """Chooses buckets, the attention of chains and the products of few rows.

    Args:
        rounding: how far the scores of two attentions may be apart, as a share of their norm.
        pinned: pad to the next bucket always, whatever is measured.
    """

    def __init__(
        self,
        graphs: GraphStepper,
        eager: EagerStepper,
        code: LayerCode,
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
        """Chooses what an earlier engine of the kind chose, by what it reported."""
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
        forced: bool = False,
        context: int = 0,
    ) -> None:
        """Captures and times every graph that trees of up to ``max_rows`` rows can need; no slot may be in use."""
        assert all(length is None for length in self._slots.lengths), "timing writes into every slot"
        if not self._collected:  # captures switch the collector off, and what it would free is memory that they need
            gc.collect()
            self._collected = True
        wanted = probabilities and not self._eager.sampling.greedy
        try:
            self._products.choose(self._code.weights())  # before anything holds a kernel
            self._attentions.choose(lambda name: self._one_row_seconds(name, context))
            for steps in self._attentions.steps(max_rows, len(self._slots)):
                kind = self._eager.kind(steps.attention, steps.tall, top_k, taps, forced, wanted)
                self.tune(steps, kind, min(context, self._slots.capacity))
        except torch.OutOfMemoryError as error:
            raise EnvironmentRefused(
                "no memory left to capture steps in CUDA graphs; lower --concurrency, or use --graphs off"
            ) from error

    def tune(self, steps: Steps, kind: StepKind, context: int) -> None:
        """Captures and times every bucket that some steps can need, and keeps those that are worth it.

        A bucket is passed over where a larger one takes less time, as it does where a library has a slow kernel for
        few rows. So the baseline, too, gets the fastest step there is.
        """
        fastest: tuple[float, int] | None = None
        buckets = self._buckets(steps.fewest, steps.widest * steps.sequences)
        earlier = self._earlier_choices(kind, buckets)
        for bucket in reversed(buckets):  # from large to small, which leaves the pool in one piece
            seconds = self._time(bucket, steps.widest, kind, context)
            chosen = bucket
            if not self._pinned and fastest is not None and seconds > WORTH * fastest[0]:
                chosen = fastest[1]
            if fastest is None or seconds < fastest[0]:
                fastest = (seconds, bucket)
            self._graphs.padded_to[bucket, kind] = earlier.get(bucket, chosen)

    def step_seconds(self, max_rows: int) -> list[tuple[int, float]]:
        """Measured (rows, seconds) by bucket of what a tree of so many rows gets, after :meth:`prepare`."""
        curve = []
        for rows in buckets_to(max_rows):
            kind = self._eager.kind(self._attentions.tree, self._attentions.tall(min(rows, max_rows)))
            curve.append((rows, self._chosen_seconds(rows, kind)))
        return curve

    def report(self) -> dict[str, Any]:
        """What was captured, measured and chosen, for the summary of a run."""
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
        """Buckets that steps of so many rows may be padded to, those included that are tried in place of one row."""
        most = min(max(most, min(_FEW, self._max_rows)), ROW_BUCKETS[-1])
        return [bucket for bucket in ROW_BUCKETS if row_bucket(min(fewest, most)) <= bucket <= row_bucket(most)]

    def _earlier_choices(self, kind: StepKind, buckets: Collection[int]) -> Mapping[int, int]:
        """Bucket -> the bucket that an earlier run padded it to, as far as it is one that its rows fit in."""
        mine = _described(kind)
        for choice in ({"probabilities": False, **each} for each in self._earlier):  # older runs had none
            if all(choice.get(name) == value for name, value in mine.items()):
                pairs = [(int(rows), int(padded)) for rows, padded in choice["padded_to"].items()]
                # Another would be captured inside a request, or have no room.
                return {rows: padded for rows, padded in pairs if rows <= padded and padded in buckets}
        return {}

    def _chosen_seconds(self, rows: int, kind: StepKind) -> float:
        """Measured time of the step that ``rows`` rows get, host copies included."""
        return self._seconds[self._graphs.padded_to[row_bucket(rows), kind], kind]

    def _time(self, rows: int, widest: int, kind: StepKind, context: int) -> float:
        """Seconds of a step of ``rows`` rows in chains of ``widest`` each; the last has what is left."""
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
        """Time of a one-row step with a backend, which is compared with the attention of trees first."""
        if attention != self._attentions.tree:
            self._compare_chains(attention, min(context, self._slots.capacity - 1))
        kind = self._eager.kind(attention, False)
        self.tune(Steps(attention, False, 1, 1, 1), kind, min(context, self._slots.capacity))
        return self._chosen_seconds(1, kind)

    def _compare_chains(self, attention: str, length: int) -> None:
        """Raises ArithmeticError where chains after ``length`` tokens differ from those by the attention of trees."""
        with self._slots.assumed(length) as slot:
            for rows in (1, min(3, self._max_rows)):
                chain = TokenTree.chain([at % self._eager.plain.vocabulary for at in range(rows)])
                expected = self._eager.logits(slot, chain)
                found = self._eager.logits(slot, chain, attention, tall=rows > 1)
                off = float(forward.relative_error(found, expected).max())
                if not off <= forward.FAR * self._rounding:
                    raise ArithmeticError(f"a chain of {rows} rows comes out {off:.2g} off")


def eager_step_seconds(stepper: EagerStepper, max_rows: int, context: int) -> list[tuple[int, float]]:
    """Measured (rows, seconds) of eager steps of one sequence after ``context`` tokens; a slot has to be free."""
    curve, slots = [], stepper.slots
    with slots.assumed(context) as slot:
        for bucket in buckets_to(max_rows):
            tree = TokenTree.chain([0] * min(bucket, max_rows))
            kind = stepper.kind(*stepper.attentions.of([tree]))

            def step(tree: TokenTree = tree, kind: StepKind = kind) -> None:
                stepper.run(pack.Batch.of({slot: tree}), kind)
                slots.rewind(slot, context)

            curve.append((bucket, median_seconds(step, _EAGER_STEPS)))
    return curve


def buckets_to(max_rows: int) -> list[int]:
    """Buckets up to the one of ``max_rows`` rows."""
    return [rows for rows in ROW_BUCKETS if rows < max_rows] + [row_bucket(max_rows)]


def median_seconds(work: Callable[[], object], times: int) -> float:
    """Median wall time of some work that is repeated so many times."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[times // 2]


def _described(kind: StepKind) -> dict[str, Any]:
    """A kind of step in the words of a record."""
    return {
        "attention": kind.attention,
        "tiles": "tall" if kind.tall else "short",
        "top_k": kind.top_k,
        "taps": list(kind.taps),
        "greedy": kind.sampling.greedy,
        "forced": kind.forced,
        "probabilities": kind.probabilities,
    }
