"""Send requests to another engine at the same time: a number of them always in flight, or as they arrive under load."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specbench.backends import Backend, EngineCounters, Question
from specbench.common import EngineFault
from specbench.results import RequestRecord
from specbench.runner.external.answer import Answer
from specbench.runner.loop import Clock
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import Due, OpenLoop, System

_LONGEST_WAIT_S = 1.0
_FILLINGS = 4  # most requests in flight per sequence after the last measured one was sent
_SPIN_S = 0.0001  # the system's timers are late by about this


@dataclass
class _Sent:
    """A request that was sent. Times in nanoseconds; ``arrived`` is None in a closed loop."""

    request: Request
    answer: Answer
    recorded: bool
    sent: int
    arrived: int | None = None
    ahead: int | None = None
    counters: EngineCounters | None = None
    overtaken: int | None = None  # when a request that was sent later got its first token before this one
    prefill_share: float = 0.0
    decode_share: float = 0.0

    def record(self, label: str, counts: str, origin: int, number: int) -> RequestRecord:
        """Its record; ``origin``: start of the segment."""
        made = self.answer.record(
            label, self.request, self.counters or EngineCounters(), counts, (origin, self.sent), number
        )
        waited = None if self.arrived is None else (self.sent - self.arrived) * 1e-9
        return made.model_copy(
            update={
                "ttft_s": made.ttft_s + (waited or 0.0),
                "latency_s": made.latency_s + (waited or 0.0),
                "waited_s": waited,
                "ahead": self.ahead,
                "prefill_share_s": self.prefill_share * 1e-9,
                "decode_share_s": self.decode_share * 1e-9,
            }
        )


class Crowd:
    """One segment of an engine's requests.

    Args:
        together: requests in flight in a closed loop.

    Attributes:
        origin: start of the segment on the clock, in nanoseconds.
    """

    def __init__(
        self,
        backend: Backend,
        question: Callable[[Request], Question],
        answer: Callable[[Request], Answer],
        together: int,
        clock: Clock,
    ) -> None:
        self._backend, self._question, self._answer = backend, question, answer
        self._several = backend.several()
        self._others: list[_Sent] = []  # ended, and not measured
        self._together, self._clock = together, clock
        self._running: dict[int, _Sent] = {}
        self._done: list[_Sent] = []
        self._system = System()
        self.origin = 0

    def answer(self, requests: Sequence[Request], load: OpenLoop | None) -> list[_Sent]:
        """Answer the requests and return them in the order in which they ended; :meth:`close` aborts the others."""
        self.origin = self._clock()
        due = load.schedule(requests) if load else (Due(request, 0, True) for request in requests)
        try:
            self._loop(due, len(requests), None if load else self._together)
        except BaseException:
            self._several.close(wait=False)
            raise
        _share_out(self._done, [*self._running.values(), *self._others], self._together)
        return self._done

    def close(self) -> None:
        """Abort the requests that are left, and return when the engine is idle."""
        self._several.close()

    def _loop(self, arrivals: Iterator[Due], wanted: int, most: int | None) -> None:
        following, unsent = next(arrivals, None), wanted
        while wanted:
            now = self._clock()
            while following and (len(self._running) < most if most else self.origin + following.at_ns <= now):
                # A queue after the last measured request changes nothing, and would have to be aborted at the end.
                if unsent or len(self._running) < _FILLINGS * self._together:
                    self._send(following, most is None)
                    unsent -= following.measured
                following = next(arrivals, None)
                now = self._clock()
            wait = _LONGEST_WAIT_S
            if following and most is None:
                wait = max(0.0, (self.origin + following.at_ns - now) * 1e-9 - _SPIN_S)
            ended: set[int] = set()
            for number, arrival in self._several.poll(min(wait, _LONGEST_WAIT_S)):
                if number in ended:  # aborted by an earlier one of these
                    continue
                one = self._running.get(number)
                if one is None:
                    raise EngineFault("it sent tokens after the end of an answer, or of a request that was not sent")
                if arrival is not None:
                    first = not one.answer.at
                    if one.answer.take(arrival) and not self._ends_by_itself(one):
                        self._several.give_up(number)
                        arrival = None
                    if first and one.answer.at:
                        self._overtakes(one)
                if arrival is None:
                    ended.add(number)
                    self._end(number)
                    wanted -= one.recorded
            self._check_stalled()

    def _overtakes(self, one: _Sent) -> None:
        for other in self._running.values():
            if other.sent < one.sent and not other.answer.at:
                other.overtaken = other.overtaken or one.answer.at[0]

    def _check_stalled(self) -> None:
        """Raise an EngineFault for a request that gets nothing, although others are answered."""
        now, most = self._clock(), self._backend.options.timeout
        for one in self._running.values():
            since = one.answer.at[-1] if one.answer.at else one.overtaken
            if since and (now - since) * 1e-9 > most:
                raise EngineFault(f"it stalled: a request got no token for {most:g} s, and later ones did")

    def _send(self, due: Due, loaded: bool) -> None:
        arrived = self.origin + due.at_ns
        question, answer = self._question(due.request), self._answer(due.request)
        sent = self._clock()
        one = _Sent(due.request, answer, due.measured, sent)
        if loaded:
            one = replace(one, arrived=arrived, ahead=self._system.arrive(arrived))
        self._running[self._several.submit(question)] = one

    def _ends_by_itself(self, one: _Sent) -> bool:
        """Whether the engine reports the end of an answer that has just ended; tokens after it are an error then."""
        reason = one.answer.output.reason
        if one.answer.encode is not None:  # its tokens are counted after tokenising it again
            return False
        return reason == "length" or (reason == "stop" and self._backend.knows_stop_ids)

    def _end(self, number: int) -> None:
        one = self._running.pop(number)
        one.counters = self._several.counters(number)
        if one.answer.encode is not None and one.answer.output.reason is None:
            one.answer.output.reason = one.counters.finish
        one.answer.check()
        if one.answer.output.overshoot and self._ends_by_itself(one):
            raise EngineFault("it continued after the end of an answer, which it should not")
        self._system.end(one.answer.at[-1])
        (self._done if one.recorded else self._others).append(one)


def _share_out(done: Sequence[_Sent], others: Sequence[_Sent], together: int) -> None:
    """Divide the time evenly among the requests in service, as our engine's is divided among its sequences.

    In service are the first ``together`` requests in flight; the others wait in the engine's queue. While some have no
    token yet, the time is theirs, as our engine reads a prompt by itself: decoding that an engine does meanwhile costs
    nothing, so that its speed is rather too high than too low.
    """
    every = sorted((*done, *others), key=lambda one: one.sent)
    ends = {id(one): one.answer.at[-1] if one.answer.output.reason else None for one in every}
    marks = sorted({at for one in every for at in (one.sent, *one.answer.at[:1], ends[id(one)]) if at is not None})
    flight: list[_Sent] = []
    waiting = deque(every)
    for start, end in pairwise(marks):
        while waiting and waiting[0].sent <= start:
            flight.append(waiting.popleft())
        flight = [one for one in flight if (last := ends[id(one)]) is None or last > start]
        served = flight[:together]
        reading = [one for one in served if not one.answer.at or one.answer.at[0] > start]
        for one in reading or served:
            share = (end - start) / len(reading or served)
            if reading:
                one.prefill_share += share
            else:
                one.decode_share += share
