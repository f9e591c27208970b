"""Send requests to another engine at the same time: a number of them always in flight, or as they arrive under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specbench.backends import Backend, EngineCounters, Question, Several
from specbench.common import EngineFault
from specbench.results import RequestRecord
from specbench.runner.external.answer import Answer
from specbench.runner.loop import Clock
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import Due, OpenLoop, System

_LONGEST_WAIT_S = 1.0
_SPIN_S = 0.0005  # the system's timers are late by up to this


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
        self._together, self._clock = together, clock
        self._running: dict[int, _Sent] = {}
        self._done: list[_Sent] = []
        self._system = System()
        self.origin = 0

    def answer(self, requests: Sequence[Request], load: OpenLoop | None) -> list[_Sent]:
        """Answer the requests and return them in the order in which they ended; all others are aborted then."""
        several = self._backend.several()
        self.origin = self._clock()
        due = load.schedule(requests) if load else (Due(request, 0, True) for request in requests)
        done = False
        try:
            self._loop(several, due, len(requests), None if load else self._together)
            done = True
        finally:
            several.close(wait=done)
        _share_out(self._done, list(self._running.values()))
        return [one for one in self._done if one.recorded]

    def _loop(self, several: Several, arrivals: Iterator[Due], wanted: int, most: int | None) -> None:
        following = next(arrivals, None)
        while wanted:
            now = self._clock()
            while following and (len(self._running) < most if most else self.origin + following.at_ns <= now):
                self._send(several, following, most is None)
                following = next(arrivals, None)
                now = self._clock()
            wait = _LONGEST_WAIT_S
            if following and most is None:
                wait = max(0.0, (self.origin + following.at_ns - now) * 1e-9 - _SPIN_S)
            for number, arrival in several.poll(min(wait, _LONGEST_WAIT_S)):
                one = self._running.get(number)
                if one is None:
                    raise EngineFault("it sent tokens after the end of an answer, or of a request that was not sent")
                if arrival is not None and one.answer.take(arrival) and not self._ends_by_itself(one):
                    several.give_up(number)
                    arrival = None
                if arrival is None:
                    self._end(several, number)
                    wanted -= one.recorded

    def _send(self, several: Several, due: Due, loaded: bool) -> None:
        arrived = self.origin + due.at_ns
        question, answer = self._question(due.request), self._answer(due.request)
        sent = self._clock()
        one = _Sent(due.request, answer, due.measured, sent)
        if loaded:
            one = replace(one, arrived=arrived, ahead=self._system.arrive(arrived))
        self._running[several.submit(question)] = one

    def _ends_by_itself(self, one: _Sent) -> bool:
        """Whether the engine reports the end of an answer that has just ended; tokens after it are an error then."""
        reason = one.answer.output.reason
        if one.answer.encode is not None:  # its tokens are counted after tokenising it again
            return False
        return reason == "length" or (reason == "stop" and self._backend.knows_stop_ids)

    def _end(self, several: Several, number: int) -> None:
        one = self._running.pop(number)
        one.counters = several.counters(number)
        if one.answer.encode is not None and one.answer.output.reason is None:
            one.answer.output.reason = one.counters.finish
        one.answer.check()
        if one.answer.output.overshoot and self._ends_by_itself(one):
            raise EngineFault("it continued after the end of an answer, which it should not")
        self._system.end(one.answer.at[-1])
        self._done.append(one)


def _share_out(done: Sequence[_Sent], running: Sequence[_Sent]) -> None:
    """Divide the time evenly among the requests in flight, as a step of our engine is divided among its sequences.

    A request's share until its first token is its prefill's, and the rest is its decoding's.
    """
    ends = [(one.sent, 1) for one in (*done, *running)] + [(one.answer.at[-1], -1) for one in done]
    marks = sorted({at for at, _ in ends} | {one.answer.at[0] for one in done})
    change: dict[int, int] = dict.fromkeys(marks, 0)
    for at, by in ends:
        change[at] += by
    spent, flight, share = {marks[0]: 0.0} if marks else {}, 0, 0.0
    for start, end in pairwise(marks):
        flight += change[start]
        share += (end - start) / flight if flight else 0.0
        spent[end] = share
    for one in done:
        first, last = one.answer.at[0], one.answer.at[-1]
        one.prefill_share, one.decode_share = spent[first] - spent[one.sent], spent[last] - spent[first]
