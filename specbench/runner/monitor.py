"""When a run looks at its machine: before, between and after its segments, and never while a request is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from specbench.backends import Row
from specbench.common import SpecbenchError, one_line
from specbench.hardware import BandwidthProbe, MachineSample, ModelShape, sample_delta, sample_machine, step_cost
from specbench.profiling import shape_of
from specbench.results import (
    BANDWIDTH,
    WATCH,
    AttachmentStore,
    Bandwidth,
    ForwardBytes,
    Reading,
    SimulatedAcceptance,
    Watch,
)
from specbench.runner.session import Session

#: Seconds between two samples, which take some milliseconds, and between two readings of memory, which take a fifth.
APART_S = 4.0

#: In a long run samples are as many times further apart: its file is written anew with each of them.
APART_SHARE = 0.01

#: Bytes of weights from which on they come from memory. Fewer lie in a cache, of which memory's bandwidth says nothing.
LEAST_WEIGHTS = 64 << 20

#: Share of the most that memory gave in a run, below which somebody else reads it too.
GIVES = 0.85


class Probe(Protocol):
    """What reads memory: :class:`specbench.hardware.bandwidth.BandwidthProbe`, or a test's own."""

    def read(self, threads: int) -> float: ...
    def close(self) -> None: ...


class ProgressSink(Protocol):
    """What is told of it: :class:`specbench.runner.run_task.Progress`."""

    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Watcher:
    """Samples what else the machine does, and keeps that in the run's folder.

    Args:
        folder: of the run; earlier samples in it stay.
        clock: that of the samples, in seconds.
    """

    def __init__(
        self,
        folder: AttachmentStore,
        look: Callable[[], MachineSample] = sample_machine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._look, self._clock = folder, look, clock
        self._found = folder.read(WATCH) or Watch()
        self._first: MachineSample | None = None
        self._last: MachineSample | None = None

    def before(self, segment: int) -> None:
        """Sample before a segment, unless the last sample is recent."""
        if self._first is None or self._last is None:
            self._first = self._last = self._look()  # what happened before it was no run
            return
        now = self._clock()
        if now - self._last.at_s >= max(APART_S, APART_SHARE * (now - self._first.at_s)):
            self._keep(segment)

    def after(self, segment: int) -> None:
        """Sample after the last segment, if anything was decoded."""
        if self._last is not None:
            self._keep(segment + 1)

    def _keep(self, segment: int) -> None:
        assert self._last is not None
        now = self._look()
        look = sample_delta(self._last, now, segment)
        if look is not None:
            self._found, self._last = Watch(looks=[*self._found.looks, look]), now
        self._folder.write(WATCH, self._found)


class MemoryReader:
    """Reads memory's bandwidth and keeps the readings in the run's folder; close it when the run is over.

    The probe is half a gigabyte and may have to be built, so it is opened for the first reading and not before: a run
    of which nothing is left to decode reads nothing. Where it cannot be had, the run goes on without.

    A neighbour of a virtual machine comes and goes. With ``patience`` a stretch waits until memory gives again what it
    gave before. It reads on meanwhile and does not sleep: idle cores of a virtual machine may be put together, and then
    a reading behind a sleep is half of what memory gives, whatever the neighbours do. Nothing is chosen by how it came
    out, and the readings that stay are those beside what was timed.

    Args:
        forwards: by method label, what a forward of its target has to read.
        folder: of the run; earlier readings in it stay.
        say: is told what goes on.
        patience: seconds that it may wait for memory, in all.
        opened: opens the probe; takes what to call with a line before it is built.
        clock: in seconds; replaced by a fake one in tests.
    """

    def __init__(
        self,
        forwards: Mapping[str, ForwardBytes],
        folder: AttachmentStore,
        say: ProgressSink,
        patience: float = 0.0,
        opened: Callable[[Callable[[str], None]], Probe] = lambda say: BandwidthProbe(say=say),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._say, self._patience = folder, say, patience
        self._opened, self._clock = opened, clock
        earlier = folder.read(BANDWIDTH) or Bandwidth()
        self._found = earlier.model_copy(update={"forwards": {**earlier.forwards, **forwards}, "refused": ""})
        self._probe: Probe | None = None
        self._last: float | None = None
        self._refused = False

    def before(self, segment: int) -> None:
        """Reads, unless the last reading of this process was a moment ago."""
        if self._last is None or self._clock() - self._last >= APART_S:
            self._read(segment)
            self._wait(segment)

    def after(self, segment: int) -> None:
        """Read after the last segment, if anything was decoded."""
        if self._last is not None:
            self._read(segment + 1)

    def refuse(self, why: str) -> None:
        """Goes on without readings, and says so in the record and to the user."""
        self._refused = True
        self._keep(self._found.model_copy(update={"refused": one_line(why)}))
        self._say.note(f"memory bandwidth is not read: {one_line(why)}")

    def close(self) -> None:
        """Gives the probe's memory back."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _wait(self, segment: int) -> None:
        """Reads again in place of the last reading, as long as it is low and there is patience."""
        said = False
        while not self._refused and self._found.low(GIVES) and self._found.waited_s < self._patience:
            if not said:  # a reading takes a moment, and a log would have a line of each
                self._say.phase("waiting for memory's bandwidth")
                said = True
            begun, earlier = self._clock(), self._found
            self._found = earlier.model_copy(update={"readings": earlier.readings[:-1]})
            self._read(segment)
            readings = earlier.readings if self._refused else self._found.readings
            waited = earlier.waited_s + self._clock() - begun
            self._keep(self._found.model_copy(update={"readings": readings, "waited_s": waited}))

    def _read(self, segment: int) -> None:
        if self._refused:
            return
        threads = torch.get_num_threads()
        try:
            if self._probe is None:
                self._probe = self._opened(lambda line: self._say.phase(line.removesuffix(" …")))
            speed = self._probe.read(threads)
        except SpecbenchError as error:
            self.close()
            self.refuse(str(error))
            return
        reading = Reading(segment=segment, threads=threads, bytes_per_s=speed)
        self._keep(self._found.model_copy(update={"readings": [*self._found.readings, reading]}))
        self._last = self._clock()

    def _keep(self, found: Bandwidth) -> None:
        self._found = found
        self._folder.write(BANDWIDTH, found)


class Monitor:
    """Samples of the machine and readings of its memory during a run.

    Args:
        memory: reads memory; None where that would say nothing of the run.
    """

    def __init__(self, watcher: Watcher, memory: MemoryReader | None) -> None:
        self._watcher, self._memory = watcher, memory

    def before(self, segment: int) -> None:
        """Sample and read before a segment, unless that was done recently."""
        self._watcher.before(segment)
        if self._memory:
            self._memory.before(segment)

    def after(self, segment: int) -> None:
        """Sample after the last segment, if anything was decoded."""
        if self._memory:
            self._memory.after(segment)
        self._watcher.after(segment)


@contextmanager
def monitoring(
    sessions: Sequence[Session],
    simulated: Mapping[str, SimulatedAcceptance],
    folder: AttachmentStore,
    say: ProgressSink,
    rows: Sequence[Row] = (),
    patience: float = 0.0,
) -> Iterator[Monitor]:
    """The monitor of a run; arguments as of :func:`memory_reader`."""
    memory = memory_reader(sessions, simulated, folder, say, rows, patience)
    try:
        yield Monitor(Watcher(folder), memory)
    finally:
        if memory:
            memory.close()


def memory_reader(
    sessions: Sequence[Session],
    simulated: Mapping[str, SimulatedAcceptance],
    folder: AttachmentStore,
    say: ProgressSink,
    rows: Sequence[Row] = (),
    patience: float = 0.0,
) -> MemoryReader | None:
    """Reader of memory for a run, or None where bandwidth does not matter (GPU, small or simulated model).

    Args:
        simulated: its methods with simulated acceptance, whose times are no machine's.
        say: is told what goes on.
        rows: of other engines; those at the precision of the run read the same weights.
        patience: seconds that it may wait, see :class:`MemoryReader`.
    """
    on_cpu = all(session.engine.device.type == "cpu" for session in sessions)
    if simulated or not on_cpu or min(session.model.spec.weight_bytes for session in sessions) < LEAST_WEIGHTS:
        return None
    try:
        forwards = {
            method.label: forward_bytes(shape_of(session.engine), session.engine.capacity)
            for session in sessions
            for method in session.methods
        }
        first = sessions[0]
        same = [row.label for row in rows if row.options.dtype in ("auto", first.model.spec.dtype)]
        forwards |= dict.fromkeys(same, forward_bytes(shape_of(first.engine), first.engine.capacity))
    except SpecbenchError:  # a mixture model that does not say how many experts are active
        forwards = {}
    return MemoryReader(forwards, folder, say, patience)


def forward_bytes(shape: ModelShape, capacity: int) -> ForwardBytes:
    """What a forward of one row has to read, behind anything from no to ``capacity`` cached tokens.

    Rows of a tree come on top of it: each reads its embedding and writes and reads its own part of the cache, which is
    nothing beside the weights.
    """
    # Between these it is a straight line: beyond its window a layer reads no more.
    ends = {layers.window - 1 for layers in shape.attention if layers.window is not None}
    contexts = sorted({0, capacity, *(end for end in ends if 0 < end < capacity)})
    return ForwardBytes(contexts=contexts, nbytes=[step_cost(shape, 1, context).bytes for context in contexts])
