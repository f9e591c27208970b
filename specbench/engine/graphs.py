"""Capture each shape of a step once in a CUDA graph and replay it: one launch instead of hundreds.

A launch costs the host several microseconds and a small forward has hundreds of launches, so an eager loop would
measure the host instead of the method. A graph holds the whole step, including copies from and to the host; lengths are
data on the device, so one capture serves every prompt.
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

#: Captures work and returns a callable that replays it. The work has run at least once when this returns.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


class CaptureFailed(EnvironmentRefused):
    """The model's forward does something that a CUDA graph cannot capture, such as reading device data on the host."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable Python's garbage collector: if it destroyed a graph during a capture, that would break the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def cuda_capture(device: torch.device) -> Capture:
    """Return a function that captures CUDA graphs in one shared memory pool: no two of them run at the same time."""
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
                work()  # handles, workspaces and compiled kernels, which are made lazily, must exist
                with _no_waiting():
                    work()
            torch.cuda.synchronize(device)
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize(device)  # what was launched until then must not overlap with the eager step
            raise CaptureFailed(
                f"cannot capture this model's forward in a CUDA graph: {_culprit(error)}; use --graphs off"
            ) from error
        return graph.replay

    return capture


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Make any wait for the device raise an error, to find a step that waits before its capture begins.

    A capture that fails halfway leaves torch's allocator (before 2.12) in a state in which the next capture aborts the
    process, so that falling back to eager steps would be impossible.
    """
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():  # torch warns each time that this is a prototype
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)


def _culprit(error: BaseException) -> str:
    """First line of the original error: the end of a failed capture raises another, more general one."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).splitlines() or [type(error).__name__])[0]


class Running(NamedTuple):
    """A captured step that the device may not have finished.

    ``outcome``, on the device: next token of each row, and path, count and bonus of each slot. ``hidden``: hidden
    states of tapped layers [N, taps × hidden size], each slot's rows in the order of its path.
    """

    batch: pack.Batch
    fields: pack.Fields
    outcome: tuple[Tensor, Tensor, Tensor, Tensor]
    hidden: Tensor


#: Device work that follows a step and is launched before the host has read the step's outcome.
Follower = Callable[[Running], None]


class StepGraph:
    """One captured step, with the host and device arrays that it reads and writes.

    ``run`` takes int32 [shape.width_in] on the device; ``place`` returns memory that keeps a step's probabilities until
    the next step.
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

        # Results of the last run on the device, outside the graphs' memory pool, which another graph may overwrite.
        self.hidden: Tensor | None = None
        self.probabilities: Tensor | None = None
        self._left: Tensor | None = None  # the output array; valid until another graph runs

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
        """Capture the step with the current ``input``; the step has run when this returns."""
        self._replay = self._capture(self._work)

    def _work(self) -> None:
        """Run the step with its copies. A closure would make a reference cycle with its graph."""
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
        """Run the step on the current ``input`` and wait for the outcome, the only wait of a step."""
        self.launch()
        return self.outcome()

    def launch(self) -> None:
        """Launch the step on the current ``input`` without waiting."""
        assert self._replay is not None
        self._replay()

    def running(self, batch: pack.Batch) -> Running:
        """Return the device data of the launched step, which must have tapped layers."""
        assert self._left is not None
        assert self.hidden is not None
        fields = pack.split(self._device_in, self.shape)
        return Running(batch, fields, pack.unjoin(self._left, self.shape), self.hidden)

    def outcome(self) -> pack.Outcome:
        """Wait for the launched step and return its outcome."""
        settle(self._device)
        return pack.Outcome(self._host_out, self.shape, self._top_k)


def settle(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class LastProbabilities:
    """Memory for the probabilities of the last step, shared by all graphs because rows × vocabulary is large.

    A smaller graph uses the beginning of the memory. When a larger graph needs more, new memory is allocated, and
    earlier graphs keep the old memory alive.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def __call__(self, probabilities: Tensor) -> Tensor:
        rows = len(probabilities)
        if self._memory is None or len(self._memory) < rows:
            self._memory = torch.empty_like(probabilities)
        return self._memory[:rows]
