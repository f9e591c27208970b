"""Steps captured once per shape and replayed: one launch where a model's layers would be hundreds (DESIGN §4).

A launch costs the host several microseconds and a small forward has hundreds, so an eager loop measures the host and
not the method. A graph holds the whole step, the copies from and to the host included; lengths are data on the device,
so one capture serves every prompt.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused
from specbench.decoding import TokenTree
from specbench.engine import pack
from specbench.engine.step import Kind

#: Takes the work to capture, returns what replays it. The work has run at least once when it returns.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

#: Row counts that steps are padded to, one graph each; which of them are used is measured (:meth:`StepGraphs.tune`).
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
#: Slot counts likewise.
SLOT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Buckets that are tried in place of one row: a matrix product of a few rows can be faster than one of one.
_FEW = 16
_TIMED = 9  # replays behind one measured step time


class CaptureFailed(EnvironmentRefused):
    """The model's forward does something that a CUDA graph cannot hold, such as reading the device on the host."""


def cuda_capture(device: torch.device) -> Capture:
    """Captures on a CUDA device, all graphs sharing one memory pool: no two of them ever run at the same time.

    Raises:
        EnvironmentRefused: not a CUDA device.
    """
    if device.type != "cuda":
        raise EnvironmentRefused("CUDA graphs need a CUDA device; use --graphs auto")
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                work()  # lazily made handles, workspaces and compiled kernels must exist
                with _no_waiting():
                    work()
            torch.cuda.synchronize(device)
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureFailed(
                f"this model's forward cannot be captured in a CUDA graph ({_culprit(error)}); use --graphs off"
            ) from error
        return graph.replay

    return capture


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Within it a wait for the device raises, so that a step that has one is found before its capture begins.

    A capture that fails half-way leaves torch's allocator (before 2.12) in a state in which the next one aborts the
    process, and then an eager step could not take over.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _culprit(error: BaseException) -> str:
    """The first line of what went wrong first: the end of a broken capture raises once more, in general words."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).splitlines() or [type(error).__name__])[0]


class StepGraph:
    """One captured step of S slots and Q rows, with the host and device arrays it reads and writes.

    Args:
        run: from int32 [S, pack.width_in(Q)] on the device to (int32 [S, pack.width_out(Q, k)], hidden) there.
        slots, rows, top_k: S, Q, k.
        device: where it runs.
        capture: how it is captured, on its first run.
    """

    def __init__(
        self,
        run: Callable[[Tensor], tuple[Tensor, Tensor | None]],
        slots: int,
        rows: int,
        top_k: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        pinned = device.type == "cuda"  # copies from and to pageable memory would wait for the host
        host_in = torch.zeros(slots, pack.width_in(rows), dtype=torch.int32, pin_memory=pinned)
        host_out = torch.zeros(slots, pack.width_out(rows, top_k), dtype=torch.int32, pin_memory=pinned)
        static_in = torch.zeros_like(host_in, device=device)

        self.hidden: Tensor | None = None  # of the last run, on the device

        def work() -> None:
            static_in.copy_(host_in, non_blocking=True)
            # Kept here, so that no later capture is given its memory.
            out, self.hidden = run(static_in)
            host_out.copy_(out, non_blocking=True)

        self.slots, self.rows = slots, rows
        self.input: pack.Ints = host_in.numpy()
        self.outcome = pack.Outcome(host_out.numpy(), rows, top_k)
        self._work = work
        self._capture = capture
        self._device = device
        self._replay: Callable[[], None] | None = None

    @property
    def captured(self) -> bool:
        return self._replay is not None

    def capture(self) -> None:
        """Captures what is in ``input``; the step has been run when this returns."""
        self._replay = self._capture(self._work)

    def run(self) -> None:
        """Runs the step on what is in ``input``; ``outcome`` is there when this returns, the step's one wait."""
        assert self._replay is not None
        self._replay()
        settle(self._device)


def settle(device: torch.device) -> None:
    """Returns when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Captures:
    """What capturing cost.

    Attributes:
        count: graphs captured.
        late: of these, after warm-up was over: inside a measured request.
        seconds, bytes: of all of them.
    """

    count: int = 0
    late: int = 0
    seconds: float = 0.0
    bytes: int = 0


@dataclass
class StepGraphs:
    """The graphs of an engine, captured when they are first needed.

    Args:
        make: the device work of a step of (slots, rows, kind).
        slots: slots of the engine.
        max_rows: rows of its largest step.
        device: where it runs.
        capture: how it captures.
    """

    make: Callable[[int, int, Kind], Callable[[Tensor], tuple[Tensor, Tensor | None]]]
    slots: int
    max_rows: int
    device: torch.device
    capture: Capture
    warm: bool = False  # whether warm-up is over, so that a capture is late
    captures: Captures = field(default_factory=Captures)
    _graphs: dict[tuple[int, int, Kind], StepGraph] = field(default_factory=dict)
    _best: dict[tuple[int, int, Kind], int] = field(default_factory=dict)
    _step_s: dict[tuple[int, int, Kind], float] = field(default_factory=dict)

    def row_buckets(self, rows: int) -> list[int]:
        """Buckets that steps of up to ``rows`` rows may be padded to, the tried ones included."""
        last = next(bucket for bucket in ROW_BUCKETS if bucket >= max(rows, min(_FEW, self.max_rows)))
        return [bucket for bucket in ROW_BUCKETS if bucket <= last]

    def slot_bucket(self, slots: int) -> int:
        """Slots that a step of the first ``slots`` is padded to."""
        return min(self.slots, next((bucket for bucket in SLOT_BUCKETS if bucket >= slots), self.slots))

    def step(
        self,
        batch: Sequence[TokenTree | None],
        lengths: Sequence[int],
        kind: Kind,
        forced: Sequence[Sequence[int] | None] | None = None,
    ) -> StepGraph:
        """The graph for a step of the first slots, with its input filled in.

        Args:
            batch, lengths, forced: as for :func:`pack.fill`, of as many slots as :meth:`slot_bucket` says.
            kind: what to compute.
        """
        need = max(len(tree) if tree else 1 for tree in batch)
        rows = next(bucket for bucket in ROW_BUCKETS if bucket >= need)
        graph = self._graph(len(batch), self._best.get((len(batch), rows, kind), rows), kind)
        pack.fill(graph.input, graph.rows, batch, lengths, forced)
        if not graph.captured:  # on real input: what a capture runs beforehand is then this very step
            self._capture(graph)
        return graph

    def tune(self, slots: int, rows: int, kind: Kind, context: int) -> None:
        """Captures and times every bucket for steps of up to ``rows`` rows, and keeps those that are worth it.

        A bucket is passed over where a larger one takes no longer, as it does where a library has a slow kernel for
        few rows. So the baseline, too, gets the fastest step there is.

        Args:
            slots: a slot bucket; no slot may be in use.
            rows: of the largest step.
            kind: what to compute.
            context: cached tokens to time it at.
        """
        fastest: tuple[float, int] | None = None
        for bucket in reversed(self.row_buckets(rows)):
            seconds = self._time(slots, bucket, kind, context)
            if fastest is None or seconds < fastest[0]:
                fastest = (seconds, bucket)
            self._best[slots, bucket, kind] = fastest[1]

    def step_seconds(self, slots: int, rows: int, kind: Kind) -> float:
        """Measured time of the step that ``rows`` rows get, host copies included; after :meth:`tune`."""
        bucket = next(bucket for bucket in ROW_BUCKETS if bucket >= rows)
        return self._step_s[slots, self._best[slots, bucket, kind], kind]

    def curves(self) -> list[dict[str, Any]]:
        """Measured seconds of every bucket, by kind and slots, and the bucket that each one's rows are padded to."""
        found: dict[tuple[Kind, int], dict[int, float]] = defaultdict(dict)
        for (slots, rows, kind), seconds in sorted(self._step_s.items(), key=lambda item: item[0][:2]):
            found[kind, slots][rows] = seconds
        return [
            {
                "attention": kind.attention,
                "top_k": kind.top_k,
                "taps": list(kind.taps),
                "greedy": kind.sampling.greedy,
                "slots": slots,
                "step_s": by_rows,
                "padded_to": {rows: self._best[slots, rows, kind] for rows in by_rows},
            }
            for (kind, slots), by_rows in found.items()
        ]

    def _time(self, slots: int, rows: int, kind: Kind, context: int) -> float:
        key = slots, rows, kind
        if key not in self._step_s:
            graph = self._graph(*key)
            pack.fill(graph.input, rows, [TokenTree.chain([0] * rows)] * slots, [context] * slots)
            if not graph.captured:
                self._capture(graph)
            graph.run()
            taken = []
            for _ in range(_TIMED):
                started = time.perf_counter()
                graph.run()
                taken.append(time.perf_counter() - started)
            self._step_s[key] = sorted(taken)[_TIMED // 2]
        return self._step_s[key]

    def _graph(self, slots: int, rows: int, kind: Kind) -> StepGraph:
        key = slots, rows, kind
        if key not in self._graphs:
            run = self.make(slots, rows, kind)
            self._graphs[key] = StepGraph(run, slots, rows, kind.top_k, self.device, self.capture)
        return self._graphs[key]

    def _capture(self, graph: StepGraph) -> None:
        started, before = time.perf_counter(), _memory(self.device)
        graph.capture()
        self.captures.count += 1
        self.captures.late += self.warm
        self.captures.seconds += time.perf_counter() - started
        self.captures.bytes += max(0, _memory(self.device) - before)


def _memory(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
