"""Steps captured once per shape and replayed: one launch where a model's layers would be hundreds (DESIGN §4).

A launch costs the host several microseconds and a small forward has hundreds, so an eager loop measures the host and
not the method. A graph holds the whole step, the copies from and to the host included; lengths are data on the device,
so one capture serves every prompt.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused
from specbench.engine import pack
from specbench.engine.program import Computed

#: Takes the work to capture, returns what replays it. The work has run at least once when it returns.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


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


#: Device work that goes on after a step, launched before the host has read what the step says.
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


class LastProbabilities:
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
