"""Step times of the engine over rows, contexts and slots, interleaved so that drift affects all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

from specbench.decoding import TokenTree
from specbench.engine import Engine
from specbench.hardware import Ceilings, LeftOut, ModelShape, StepPoint, StepTimes, base_context
from specbench.profiling.step_grid import Cell

_WANTED, _MOST = 5, 25  # timed steps of each cell
_LEAST = 3  # if steps become slower than at first
SOME_TOKENS = 1000  # token ids are sampled from the first 1000, which nearly every vocabulary has

Say = Callable[[str], None]


class Steps:
    """Steps of an engine at assumed contexts. The engine is attached to the model only during them."""

    def __init__(self, model: Any, cells: Sequence[Cell], **options: Any) -> None:
        slots, rows = max(cell.slots for cell in cells), max(cell.rows for cell in cells)
        context = max(cell.context for cell in cells)
        vocab = min(SOME_TOKENS, int(model.get_input_embeddings().weight.shape[0]))
        self._tokens, self._random = range(vocab), random.Random(0)
        self.engine = Engine(model, slots=slots, capacity=context + 1, max_rows=rows, **options)
        try:
            self.engine.prepare(rows, context=base_context([cell.context for cell in cells]))
            for _ in range(slots):
                self.engine.alloc()
        finally:
            self.engine.detach()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach this engine to the model for a while."""
        self.engine.attach()
        try:
            yield
        finally:
            self.engine.detach()

    def seconds(self, cell: Cell) -> float:
        """Wall time of one step, host work included. The engine must be attached."""
        trees = {}
        for slot in range(cell.slots):
            self.engine.assume(slot, cell.context)
            trees[slot] = TokenTree.chain(self._random.choices(self._tokens, k=cell.rows))
        self.engine.settle()
        began = time.perf_counter()
        self.engine.step(trees)
        return time.perf_counter() - began


class Measurement:
    """Measure step times until a deadline.

    First each configuration is stepped once or twice, in order. A configuration that would leave too little time for
    enough steps of the earlier ones is left out; its time is predicted from theirs, often without a trial. Then all
    others are stepped in rounds, in a new random order each. Ctrl-C ends the rounds; complete rounds are kept.

    ``deadline`` is on ``time.perf_counter``'s clock; the first configuration is always measured.
    """

    def __init__(
        self, model: Any, shape: ModelShape, ceilings: Ceilings, deadline: float, say: Say, **options: Any
    ) -> None:
        self._model, self._shape, self._ceilings = model, shape, ceilings
        self._deadline, self._say, self._options = deadline, say, options
        # One engine for one slot and one for several: a single engine for both would need the product of their sizes.
        self._arms: dict[bool, Steps] = {}
        self._tried: dict[Cell, float] = {}
        self._random = random.Random(0)
        self.report: dict[str, Any] = {}
        self.interrupted = False

    def run(self, cells: Sequence[Cell]) -> tuple[list[StepPoint], list[LeftOut]]:
        """Measure ``cells``, most informative first; return the points, and the cells there was no time for."""
        left_out = []
        for several in (False, True):
            mine = [cell for cell in cells if (cell.slots > 1) == several]
            if mine and (not several or self._left() > 0):
                self._arms[several] = Steps(self._model, mine, **self._options)
        reserved = 0.0
        for cell in cells:
            if not self._try(cell, reserved):
                left_out.append(cell.left_out("time"))
                continue
            reserved += _WANTED * self._tried[cell]
        self._say(f"timing {len(self._tried)} steps in rounds" + (f", {len(left_out)} left out" if left_out else ""))
        points = [_point(cell, taken) for cell, taken in self._rounds().items()]
        self.report = self._arms[False].engine.report()
        self.report.pop("steps", None)  # a coarse version of the points
        return points, left_out

    def _left(self) -> float:
        return self._deadline - time.perf_counter()

    def _try(self, cell: Cell, reserved: float) -> bool:
        """Warm up a configuration and note its time, unless that would leave too little time."""
        if (cell.slots > 1) not in self._arms:
            return False
        if self._tried:
            points = [_point(tried, [seconds]) for tried, seconds in self._tried.items()]
            foreseen = StepTimes(self._shape, self._ceilings, points).seconds(cell.rows, cell.context, cell.slots)
            if (_WANTED + 2) * foreseen > self._left() - reserved:
                return False
        steps = self._arms[cell.slots > 1]
        with steps.attached():
            seconds = min(steps.seconds(cell) for _ in range(2))  # the first step may include one-time work
        if self._tried and _WANTED * seconds > self._left() - reserved:
            return False
        self._tried[cell] = seconds
        return True

    def _rounds(self) -> dict[Cell, list[float]]:
        """Seconds of every step of every configuration, equally many for each."""
        taken: dict[Cell, list[float]] = {cell: [] for cell in self._tried}
        longest = 0.0
        for done in range(_MOST):
            if done >= _LEAST and longest > self._left():
                break
            began = time.perf_counter()
            try:
                one = self._round()
            except KeyboardInterrupt:
                if not done:
                    raise
                self.interrupted = True
                break
            for cell, seconds in one.items():
                taken[cell].append(seconds)
            longest = max(longest, time.perf_counter() - began)
        return taken

    def _round(self) -> dict[Cell, float]:
        """Seconds of one step of every configuration."""
        found = {}
        for arm in self._drawn(self._arms):
            mine = [cell for cell in self._tried if (cell.slots > 1) == arm]
            with self._arms[arm].attached():
                for cell in self._drawn(mine):
                    found[cell] = self._arms[arm].seconds(cell)
        return found

    def _drawn(self, some: Iterable[Any]) -> list[Any]:
        found = list(some)
        self._random.shuffle(found)
        return found


def _point(cell: Cell, taken: Sequence[float]) -> StepPoint:
    low, _, high = quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else (taken[0],) * 3
    return StepPoint(
        rows=cell.rows,
        context=cell.context,
        slots=cell.slots,
        seconds=median(taken),
        low_s=low,
        high_s=high,
        steps=len(taken),
    )
