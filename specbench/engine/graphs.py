"""Steps captured once per shape and replayed: one launch where a model's layers would be hundreds (DESIGN §4).

A launch costs the host several microseconds and a small forward has hundreds, so an eager loop measures the host and
not the method. A graph holds the whole step, the copies from and to the host included; lengths are data on the device,
so one capture serves every prompt.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused
from specbench.decoding import TokenTree
from specbench.engine import pack
from specbench.engine.attention.choice import Steps
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.fast_paths import WORTH
from specbench.engine.step import Computed, Kind

#: Takes the work to capture, returns what replays it. The work has run at least once when it returns.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

#: Buckets that are tried in place of one row: a matrix product of a few rows can be faster than one of one.
_FEW = 16
_TIMED = 9  # replays behind one measured step time


class CaptureFailed(EnvironmentRefused):
    """The model's forward does something that a CUDA graph cannot hold, such as reading the device on the host."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python's collector from running: a graph that it destroys while another is captured breaks the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def cuda_capture(device: torch.device) -> Capture:
    """Captures on a CUDA device, all graphs sharing one memory pool: no two of them ever run at the same time."""
    if device.type != "cuda":
        raise EnvironmentRefused("CUDA graphs need a CUDA device; use --graphs auto")
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)

    @_no_collection()
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
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():  # torch says each time that this is a prototype
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)


def _culprit(error: BaseException) -> str:
    """The first line of what went wrong first: the end of a broken capture raises once more, in general words."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).splitlines() or [type(error).__name__])[0]


class Running(NamedTuple):
    """A captured step that the device may not have finished.

    ``outcome``, on the device: next token of each row, path, count and bonus of each slot. ``hidden``: of tapped layers
    [N, taps × hidden size], of the row at each depth of each slot's path.
    """

    batch: pack.Batch
    fields: pack.Fields
    outcome: tuple[Tensor, Tensor, Tensor, Tensor]
    hidden: Tensor


#: Device work that goes on behind a step, launched before the host has read what the step says.
Follower = Callable[[Running], None]


class StepGraph:
    """One captured step, with the host and device arrays it reads and writes.

    ``run`` takes int32 [shape.width_in] on the device; ``place`` keeps probabilities like these until the next step.
    """

    def __init__(
        self,
        run: Callable[[Tensor], Computed],
        shape: pack.Shape,
        top_k: int,
        device: torch.device,
        capture: Capture,
        place: Callable[[Tensor], Tensor] = torch.empty_like,
    ) -> None:
        pinned = device.type == "cuda"  # copies from and to pageable memory would wait for the host
        host_in = torch.zeros(shape.width_in, dtype=torch.int32, pin_memory=pinned)
        host_out = torch.zeros(shape.width_out(top_k), dtype=torch.int32, pin_memory=pinned)
        static_in = torch.zeros_like(host_in, device=device)

        # Of the last run, on the device; not in memory of the graphs' own pool, which may be another graph's too.
        self.hidden: Tensor | None = None
        self.probabilities: Tensor | None = None
        self._left: Tensor | None = None  # the output array; until another graph runs

        self.shape = shape
        self.input: pack.Ints = host_in.numpy()
        self._host_out, self._top_k = host_out.numpy(), top_k
        self._host, self._device_in = (host_in, host_out), static_in
        self._run, self._place = run, place
        self._capture = capture
        self._device = device
        self._replay: Callable[[], None] | None = None

    @property
    def captured(self) -> bool:
        return self._replay is not None

    def capture(self) -> None:
        """Captures what is in ``input``; the step has been run when this returns."""
        self._replay = self._capture(self._work)

    def _work(self) -> None:
        """The step with its copies. A method and no closure, which would keep its graph alive in a circle."""
        host_in, host_out = self._host
        self._device_in.copy_(host_in, non_blocking=True)
        out, hidden, probabilities = self._run(self._device_in)
        if hidden is not None:
            if self.hidden is None:  # before the capture
                self.hidden = torch.empty_like(hidden)
            self.hidden.copy_(hidden)
        if probabilities is not None:
            if self.probabilities is None:
                self.probabilities = self._place(probabilities)
            self.probabilities.copy_(probabilities)
        host_out.copy_(out, non_blocking=True)
        self._left = out

    def run(self) -> pack.Outcome:
        """Runs the step on what is in ``input`` and waits for its outcome, the step's one wait."""
        self.launch()
        return self.outcome()

    def launch(self) -> None:
        """Runs the step on what is in ``input``; the host goes on."""
        assert self._replay is not None
        self._replay()

    def running(self, batch: pack.Batch) -> Running:
        """What was launched, on the device, of a step with tapped layers."""
        assert self._left is not None
        assert self.hidden is not None
        fields = pack.split(self._device_in, self.shape)
        return Running(batch, fields, pack.unjoin(self._left, self.shape), self.hidden)

    def outcome(self) -> pack.Outcome:
        """Waits for the outcome of what was launched."""
        settle(self._device)
        return pack.Outcome(self._host_out, self.shape, self._top_k)


def settle(device: torch.device) -> None:
    """Returns when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Captures:
    """What capturing cost; ``late`` counts graphs that a request had to wait for."""

    count: int = 0
    late: int = 0
    seconds: float = 0.0
    bytes: int = 0


class _Kept:
    """Probabilities of the last step, whichever graph's, in one memory: a vocabulary for each row is large.

    A smaller graph uses its beginning, and keeps an earlier, smaller one alive.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def __call__(self, probabilities: Tensor) -> Tensor:
        rows = len(probabilities)
        if self._memory is None or len(self._memory) < rows:
            self._memory = torch.empty_like(probabilities)
        return self._memory[:rows]


@dataclass
class StepGraphs:
    """The graphs of an engine, captured when they are first needed.

    Args:
        choices: what an earlier run measured, as :meth:`curves` has it; its rows are padded as they were there.
        pinned: pad to the next bucket always, whatever is measured.
    """

    make: Callable[[pack.Shape, Kind], Callable[[Tensor], Computed]]
    shape: Callable[[int, Kind], pack.Shape]
    slots: int
    max_rows: int
    device: torch.device
    capture: Capture
    choices: Sequence[Mapping[str, Any]] = ()
    pinned: bool = False
    captures: Captures = field(default_factory=Captures)
    _graphs: dict[tuple[int, Kind], StepGraph] = field(default_factory=dict)
    _failed: set[tuple[int, Kind]] = field(default_factory=set)  # whose late capture has raised
    _best: dict[tuple[int, Kind], int] = field(default_factory=dict)
    _step_s: dict[tuple[int, Kind], float] = field(default_factory=dict)
    _kept: _Kept = field(default_factory=_Kept)

    def row_buckets(self, fewest: int, most: int) -> list[int]:
        """Buckets that steps of so many rows may be padded to, those included that are tried in place of one row."""
        most = min(max(most, min(_FEW, self.max_rows)), ROW_BUCKETS[-1])
        return [bucket for bucket in ROW_BUCKETS if row_bucket(min(fewest, most)) <= bucket <= row_bucket(most)]

    def step(
        self,
        batch: pack.Batch,
        lengths: Sequence[int],
        kind: Kind,
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> StepGraph | None:
        """The graph for a step, with its input filled in.

        None where the step is to run eagerly: of more rows than are ever captured, or where its capture has failed
        before.
        """
        if batch.rows > ROW_BUCKETS[-1]:
            return None
        rows = row_bucket(batch.rows)
        key = self._best.get((rows, kind), rows), kind
        if key in self._failed:
            return None
        graph = self._graph(*key)
        pack.fill(graph.input, graph.shape, batch, lengths, forced)
        if not graph.captured:  # on real input: what a capture runs beforehand is then this very step
            try:
                self._capture(graph)
            except (RuntimeError, CaptureFailed):
                self._failed.add(key)
                del self._graphs[key]
                raise
            self.captures.late += 1
        return graph

    def tune(self, steps: Steps, kind: Kind, context: int) -> None:
        """Captures and times every bucket that some steps can need, and keeps those that are worth it.

        A bucket is passed over where a larger one takes less time, as it does where a library has a slow kernel for
        few rows. So the baseline, too, gets the fastest step there is. No slot may be in use.
        """
        fastest: tuple[float, int] | None = None
        buckets = self.row_buckets(steps.fewest, steps.widest * steps.sequences)
        known = self._known(kind, buckets)
        for bucket in reversed(buckets):  # from large to small, which leaves the pool in one piece
            seconds = self._time(bucket, steps.widest, kind, context)
            chosen = bucket
            if not self.pinned and fastest is not None and seconds > WORTH * fastest[0]:
                chosen = fastest[1]
            if fastest is None or seconds < fastest[0]:
                fastest = (seconds, bucket)
            self._best[bucket, kind] = known.get(bucket, chosen)

    def _known(self, kind: Kind, buckets: Collection[int]) -> Mapping[int, int]:
        """Bucket -> the bucket that an earlier run padded it to, as far as it is one that its rows fit in."""
        mine = _words(kind)
        for choice in ({"probabilities": False, **each} for each in self.choices):  # older runs had none
            if all(choice.get(name) == value for name, value in mine.items()):
                pairs = [(int(rows), int(padded)) for rows, padded in choice["padded_to"].items()]
                # Another would be captured inside a request, or have no room.
                return {rows: padded for rows, padded in pairs if rows <= padded and padded in buckets}
        return {}

    def step_seconds(self, rows: int, kind: Kind) -> float:
        """Measured time of the step that ``rows`` rows get, host copies included; after :meth:`tune`."""
        return self._step_s[self._best[row_bucket(rows), kind], kind]

    def curves(self) -> list[dict[str, Any]]:
        """Measured seconds of every bucket, by kind, and the bucket that each one's rows are padded to."""
        found: dict[Kind, dict[int, float]] = defaultdict(dict)
        for (rows, kind), seconds in sorted(self._step_s.items(), key=lambda item: item[0][0]):
            found[kind][rows] = seconds
        return [
            {
                **_words(kind),
                "step_s": by_rows,
                "padded_to": {rows: self._best[rows, kind] for rows in by_rows},
            }
            for kind, by_rows in found.items()
        ]

    def _time(self, rows: int, widest: int, kind: Kind, context: int) -> float:
        key = rows, kind
        if key not in self._step_s:
            graph = self._graph(*key)
            pack.fill(graph.input, graph.shape, self._chains(rows, widest), [context] * self.slots)
            if not graph.captured:
                self._capture(graph)
                self._failed.discard(key)
            graph.run()
            taken = []
            for _ in range(_TIMED):
                started = time.perf_counter()
                graph.run()
                taken.append(time.perf_counter() - started)
            self._step_s[key] = sorted(taken)[_TIMED // 2]
        return self._step_s[key]

    def _chains(self, rows: int, widest: int) -> pack.Batch:
        """Chains of ``widest`` rows each, as many as fit in ``rows``; the last of what is left."""
        sizes = [min(widest, rows - at) for at in range(0, rows, widest)][: self.slots]
        return pack.Batch.of({slot: TokenTree.chain([0] * size) for slot, size in enumerate(sizes)})

    def _graph(self, rows: int, kind: Kind) -> StepGraph:
        key = rows, kind
        if key not in self._graphs:
            shape = self.shape(rows, kind)
            self._graphs[key] = StepGraph(
                self.make(shape, kind), shape, kind.top_k, self.device, self.capture, self._kept
            )
        return self._graphs[key]

    def _capture(self, graph: StepGraph) -> None:
        started, before = time.perf_counter(), _memory(self.device)
        graph.capture()
        self.captures.count += 1
        self.captures.seconds += time.perf_counter() - started
        self.captures.bytes += max(0, _memory(self.device) - before)


def _words(kind: Kind) -> dict[str, Any]:
    """A kind in the words of a record."""
    return {
        "attention": kind.attention,
        "tiles": "tall" if kind.tall else "short",
        "top_k": kind.top_k,
        "taps": list(kind.taps),
        "greedy": kind.sampling.greedy,
        "forced": kind.forced,
        "probabilities": kind.probabilities,
    }


def _memory(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
