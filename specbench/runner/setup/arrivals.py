"""When the requests of a segment arrive under open-loop load.

Requests arrive by the clock, whether earlier ones have been answered or not, so a stalled decoder delays every request
that arrives meanwhile and all of these delays are measured (no coordinated omission). A segment begins on an empty
system with warm-up requests, and further requests keep arriving until the last measured one has ended: figures contain
neither the filling nor the draining of the system.
"""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice, pairwise, repeat

from specbench.planning import Arrivals
from specbench.runner.record import Request

_SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True)
class Due:
    """A request with the nanoseconds from the start of its segment to its arrival; ``measured``: it is recorded."""

    request: Request
    at_ns: int
    measured: bool


@dataclass(frozen=True)
class OpenLoop:
    """The arrivals of one segment: gaps in seconds, and the requests before and after the measured ones."""

    gaps: Iterator[float]
    warm_up: Sequence[Request]
    further: Iterator[Request]

    def schedule(self, measured: Sequence[Request]) -> Iterator[Due]:
        """Yield all arrivals in order, without end."""
        at_ns = 0
        kinds = chain(repeat(False, len(self.warm_up)), repeat(True, len(measured)), repeat(False))
        requests = chain(self.warm_up, measured, self.further)
        for gap, request, recorded in zip(self.gaps, requests, kinds, strict=False):
            at_ns += round(gap * _SECOND)
            yield Due(request, at_ns, recorded)


def open_loop(
    arrivals: Arrivals, requests: Sequence[Request], others: Sequence[Request], slots: int, seed: str, begins: int
) -> OpenLoop:
    """The load of a segment.

    Args:
        requests: the measured requests.
        others: requests to warm up and to go on with, in order.
        slots: sequences that are decoded together, and so the number of warm-up requests.
        seed: of random gaps: the same for every method, so that all get the same arrivals.
        begins: where in a trace the segment begins.
    """
    point = arrivals.load.at(requests[0].repeat)
    endless = (replace(each, prompt_id=f"load/{each.prompt_id}") for each in cycle(others))
    warm_up = [*islice(endless, slots)]
    if arrivals.trace:
        gaps = _trace_gaps(arrivals.trace, point.rate, begins)
    else:
        rates = _rates(point.rate, point.end, len(warm_up), len(requests))
        draw = random.Random(seed)
        steady = arrivals.load.arrivals == "constant"
        gaps = (1 / rate if steady else draw.expovariate(rate) for rate in rates)
    return OpenLoop(gaps, warm_up, endless)


def _rates(rate: float, end: float | None, before: int, measured: int) -> Iterator[float]:
    """The rate of each arrival: constant, or rising linearly through the measured ones."""
    yield from repeat(rate, before)
    last = rate if end is None else end
    for at in range(measured):
        yield rate + (last - rate) * (at + 1) / measured
    yield from repeat(last)


def _trace_gaps(times: Sequence[float], rate: float, begins: int) -> Iterator[float]:
    """The gaps of a trace, scaled to a mean rate, from the arrival with this number on; it starts again at its end."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    scale = len(gaps) / times[-1] / rate
    start = begins % len(gaps)
    yield from (gap * scale for gap in islice(cycle(gaps), start, None))


class System:
    """How many requests are in the system: arrived and not ended."""

    def __init__(self) -> None:
        self._arrived = 0
        self._ends: list[int] = []

    def arrive(self, at_ns: int) -> int:
        """Add a request; return how many were there at its arrival. Arrivals come in order."""
        ahead = self._arrived - bisect_right(self._ends, at_ns)
        self._arrived += 1
        return ahead

    def end(self, at_ns: int) -> None:
        """Note that a request has ended."""
        insort(self._ends, at_ns)
