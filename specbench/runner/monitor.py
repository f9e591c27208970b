"""Watch the machine before, between and after a run's segments, and never while a request is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from specbench.backends import Row
from specbench.common import SpecbenchError, one_line
from specbench.engine import Engine
from specbench.hardware import BandwidthProbe, MachineSample, ModelShape, sample_delta, sample_machine, step_cost
from specbench.profiling import shape_of, with_routing
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

#: Seconds between two samples, which take some milliseconds, and between two readings of memory, which take 0.2 s.
APART_S = 4.0

#: In a long run samples are that many times further apart, because each of them rewrites the file.
APART_SHARE = 0.01

#: Smallest bytes of weights that come from memory; smaller weights stay in a cache, and memory bandwidth is irrelevant.
LEAST_WEIGHTS = 64 << 20

#: Share of the run's highest bandwidth below which another process must be reading memory, too.
GIVES = 0.85


class Probe(Protocol):
    """Reads memory: :class:`specbench.hardware.bandwidth.BandwidthProbe`, or a test's fake."""

    def read(self, threads: int) -> float: ...
    def close(self) -> None: ...


class ProgressSink(Protocol):
    """Receives messages: :class:`specbench.runner.run_task.Progress`."""

    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Watcher:
    """Sample what else the machine does, and store the samples in the run's folder.

    Args:
        folder: of the run; its earlier samples stay.
        clock: clock of the samples, in seconds.
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
            self._first = self._last = self._look()  # earlier events are not part of the run
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
    """Measure memory bandwidth and store the readings in the run's folder; close it when the run is over.

    The probe takes half a gigabyte and may have to be built, so it is opened for the first reading: a run with nothing
    left to decode reads nothing. If the probe is not available, the run goes on without it.

    Other virtual machines on the same host come and go. With ``patience``, a segment waits until the bandwidth is back
    at its earlier value. It keeps reading instead of sleeping, because the hypervisor may move idle cores together, and
    then a reading after a sleep is half of the true bandwidth. The waiting does not depend on any result, and only
    readings next to timed segments are kept.

    Args:
        forwards: by method label, the bytes that a forward of its target reads.
        folder: of the run; its earlier readings stay.
        say: receives messages.
        patience: seconds that it may wait for memory, in all.
        opened: opens the probe; takes a function for a message before it is built.
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
        """Read, unless the last reading is recent."""
        if self._last is None or self._clock() - self._last >= APART_S:
            self._read(segment)
            self._wait(segment)

    def after(self, segment: int) -> None:
        """Read after the last segment, if anything was decoded."""
        if self._last is not None:
            self._read(segment + 1)

    def refuse(self, why: str) -> None:
        """Continue without readings, and note that in the record and for the user."""
        self._refused = True
        self._keep(self._found.model_copy(update={"refused": one_line(why)}))
        self._say.note(f"memory bandwidth is not read: {one_line(why)}")

    def close(self) -> None:
        """Free the probe's memory."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _wait(self, segment: int) -> None:
        """Repeat the last reading while it is low and patience is left."""
        announced = False
        while not self._refused and self._found.low(GIVES) and self._found.waited_s < self._patience:
            if not announced:  # readings are frequent; one line is enough
                self._say.phase("waiting for memory bandwidth")
                announced = True
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
        memory: reads memory; None if bandwidth does not matter for the run.
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
    text: Sequence[int] = (),
) -> Iterator[Monitor]:
    """The monitor of a run; arguments as of :func:`memory_reader`."""
    memory = memory_reader(sessions, simulated, folder, say, rows, patience, text)
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
    text: Sequence[int] = (),
) -> MemoryReader | None:
    """Reader of memory for a run, or None where bandwidth does not matter (GPU, small or simulated model).

    Args:
        simulated: methods with simulated acceptance, whose times say nothing about the machine.
        say: receives messages.
        rows: of other engines; rows in the run's precision read the same weights.
        patience: seconds that it may wait, see :class:`MemoryReader`.
        text: token ids of a prompt, for which the experts that several rows read are counted.
    """
    on_cpu = all(session.engine.device.type == "cpu" for session in sessions)
    if simulated or not on_cpu or min(session.model.spec.weight_bytes for session in sessions) < LEAST_WEIGHTS:
        return None
    try:
        each = [_forward_bytes_of(session.engine, text) for session in sessions]
        forwards = {
            method.label: read for session, read in zip(sessions, each, strict=True) for method in session.methods
        }
        same = [row.label for row in rows if row.options.dtype in ("auto", sessions[0].model.spec.dtype)]
        forwards |= dict.fromkeys(same, each[0])
    except SpecbenchError:  # a mixture of experts with an unknown number of active ones
        forwards = {}
    return MemoryReader(forwards, folder, say, patience)


def _forward_bytes_of(engine: Engine, text: Sequence[int]) -> ForwardBytes:
    with engine.detached():
        return forward_bytes(with_routing(shape_of(engine), engine.model, text), engine.capacity)


def forward_bytes(shape: ModelShape, capacity: int) -> ForwardBytes:
    """Bytes that a forward reads, for 0 to ``capacity`` cached tokens and for the rows whose experts were counted."""
    # Linear between these points: beyond its window a layer reads no more.
    ends = {layers.window - 1 for layers in shape.attention if layers.window is not None}
    contexts = sorted({0, capacity, *(end for end in ends if 0 < end < capacity)})
    found = shape.experts
    further = (
        {rows: (read - found.distinct(1)) * found.elements * shape.weight_bytes for rows, read in found.routed.items()}
        if found else {}
    )  # fmt: skip
    nbytes = [step_cost(shape, 1, context).bytes for context in contexts]
    return ForwardBytes(contexts=contexts, nbytes=nbytes, expert_bytes=further)
