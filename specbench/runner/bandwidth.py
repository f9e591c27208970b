"""Bandwidth beside a run: memory is read before, between and behind its stretches, and never on a request's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from specbench.backends.rows import Row
from specbench.common import SpecbenchError
from specbench.common.errors import one_line
from specbench.hardware import ModelShape
from specbench.hardware.bandwidth import BandwidthProbe
from specbench.hardware.roofline import step_cost
from specbench.profiling import shape_of
from specbench.results.attachment import Keeps
from specbench.results.bandwidth import BANDWIDTH, Bandwidth, ForwardBytes, Reading
from specbench.results.schema import SimulatedAcceptance
from specbench.runner.session import Session

#: Bytes of weights from which on they come from memory. Fewer lie in a cache, of which memory's bandwidth says nothing.
LEAST_WEIGHTS = 64 << 20

#: Seconds between two readings, each of which takes a fifth of one: at most a twentieth of a run.
APART = 4.0

#: Share of the most that memory gave in a run, below which somebody else reads it too.
GIVES = 0.85


class Probe(Protocol):
    """What reads memory: :class:`specbench.hardware.bandwidth.BandwidthProbe`, or a test's own."""

    def read(self, threads: int) -> float: ...
    def close(self) -> None: ...


class Says(Protocol):
    """What is told of it: :class:`specbench.runner.execution.Progress`."""

    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Beside:
    """Takes the readings of a run and keeps them in its folder, after those that are there; close it when the run is
    over.

    The probe takes half a gigabyte and may have to be built, so it is opened for the first reading; without it the run
    goes on. With ``patience`` (seconds in all) a segment waits until memory gives again what it gave before. It reads
    on meanwhile and does not sleep: idle cores of a virtual machine may be put together, and a reading after a sleep is
    half of what memory gives.

    ``forwards`` says by method label what a forward of its target reads.
    """

    def __init__(
        self,
        forwards: Mapping[str, ForwardBytes],
        folder: Keeps,
        say: Says,
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
        """Read, unless the last reading of this process was a moment ago; ``segment`` comes next."""
        if self._last is None or self._clock() - self._last >= APART:
            self._read(segment)
            self._wait(segment)

    def behind(self, segment: int) -> None:
        """Read after the last segment, and nothing where nothing was decoded."""
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


@contextmanager
def beside(
    sessions: Sequence[Session],
    simulated: Mapping[str, SimulatedAcceptance],
    folder: Keeps,
    say: Says,
    rows: Sequence[Row] = (),
    patience: float = 0.0,
) -> Iterator[Beside | None]:
    """Bandwidth probe for this run, or None where memory bandwidth does not matter (GPU, small or simulated model).

    Other engines' ``rows`` at the precision of the run read the same weights.
    """
    on_cpu = all(session.engine.device.type == "cpu" for session in sessions)
    if simulated or not on_cpu or min(session.model.spec.weight_bytes for session in sessions) < LEAST_WEIGHTS:
        yield None
        return
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
    reader = Beside(forwards, folder, say, patience)
    try:
        yield reader
    finally:
        reader.close()


def forward_bytes(shape: ModelShape, capacity: int) -> ForwardBytes:
    """What a forward of one row has to read, after 0 to ``capacity`` cached tokens.

    Further rows of a tree read an embedding and their own part of the cache, which is negligible.
    """
    # Between these it is a straight line: beyond its window a layer reads no more.
    ends = {layers.window - 1 for layers in shape.attention if layers.window is not None}
    contexts = sorted({0, capacity, *(end for end in ends if 0 < end < capacity)})
    return ForwardBytes(contexts=contexts, nbytes=[step_cost(shape, 1, context).bytes for context in contexts])
