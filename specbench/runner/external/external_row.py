"""A row of another engine: timed by our clock, ended by our stop rule, and written in our records.

t0 is when the request is handed over; tokens that arrive together share a time. Definitions are those of
:mod:`specbench.runner.loop`; if an engine's first arrival has several tokens, none of them counts as decoded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specbench.backends import Arrival, Backend, Question, Row, Served
from specbench.common import EngineFault, UsageError, resident_bytes
from specbench.engine import Sampling
from specbench.results import EngineFacts, RequestRecord
from specbench.runner.external.answer import Answer
from specbench.runner.external.crowd import Crowd
from specbench.runner.loop import Clock
from specbench.runner.record import Request
from specbench.runner.setup.arrivals import OpenLoop
from specbench.runner.stop import Output, StopRule


class ExternalRow:
    """One engine. Close it when done, or use it as a context manager.

    ``clock`` is in nanoseconds, the same as the engines' arrival times; ``facts`` describe the engine once it has
    started.
    """

    def __init__(self, row: Row, served: Served, sampling: Sampling, clock: Clock = time.perf_counter_ns) -> None:
        self.row, self.facts = row, None
        self.sampling = sampling
        self._served, self._clock = served, clock
        self._backend: Backend = row.backend(row.mode, row.options, served)

    facts: EngineFacts | None

    @property
    def backend(self) -> Backend:
        """What answers."""
        return self._backend

    def start(self) -> None:
        """Start it. Raises EngineFault naming the row if it is not installed, does not start or does not answer."""
        with self._named():
            self._backend.version(self.row.options)
            self.facts = self._backend.start()

    def warm_up(self, ids: Sequence[int], tokens: int) -> None:
        """Answer a warm-up prompt twice, untimed, so that everything is compiled."""
        assert self.facts is not None, "it is started"
        rule = StopRule(frozenset(), (), tokens, self._served.model.decode)
        for _ in self.decode([Request("warm-up", repeat, ids, rule) for repeat in range(2)], 0):
            pass
        if processes := self._backend.processes():
            self.facts = self.facts.model_copy(update={"memory_bytes": resident_bytes(processes)})

    def decode(self, requests: Sequence[Request], number: int, load: OpenLoop | None = None) -> Iterator[RequestRecord]:
        """Answer requests; yield each as it ends. ``number`` is stored with each record.

        They are answered one after the other, or as many at once as the engine was started for, or as they arrive under
        ``load``. Then their records are made after the last answer, because the engine goes on meanwhile.

        Raises EngineFault naming the row if the engine died, stalled, or returned something unexpected.
        """
        if load or self._served.together > 1:
            yield from self._several_answers(requests, load, number)
            return
        origin, away = self._clock(), 0
        for request in requests:
            with self._named():
                record = self._answer(request, origin + away, number)
            before = self._clock()
            yield record
            away += self._clock() - before

    def close(self) -> None:
        """Ends it."""
        self._backend.close()

    def __enter__(self) -> ExternalRow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (EngineFault, UsageError) as fault:  # a wrong address is noticed when connecting
            raise EngineFault(f"{self.row.label}: {fault}") from fault

    def _answer(self, request: Request, origin: int, number: int) -> RequestRecord:
        answer, question = self._new_answer(request), self._question(request)
        started = self._clock()
        arrivals = iter(self._backend.ask(question))
        try:
            for arrival in arrivals:
                if answer.take(arrival):
                    break
            if answer.encode is not None and answer.output.reason is None:
                answer.output.reason = self._backend.counters().finish
            answer.check()
            if answer.encode is None:
                self._check_ends(answer.output, arrivals)
        finally:
            close = getattr(arrivals, "close", None)
            if close is not None:
                close()
        return answer.record(self.row.label, request, self._backend.counters(), self._counts, (origin, started), number)

    @property
    def _counts(self) -> str:
        return self.facts.counts if self.facts else "forwards"

    def _new_answer(self, request: Request) -> Answer:
        answer = Answer(Output(request.rule), self._served.model.vocab_size)
        if self.facts is not None and not self.facts.ids:
            answer.encode = lambda text: self._served.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        return answer

    def _several_answers(
        self, requests: Sequence[Request], load: OpenLoop | None, number: int
    ) -> Iterator[RequestRecord]:
        with self._named():
            crowd = Crowd(self._backend, self._question, self._new_answer, self._served.together, self._clock)
            found = [
                one.record(self.row.label, self._counts, crowd.origin, number) for one in crowd.answer(requests, load)
            ]
        yield from found
        with self._named():  # what it still has to abort costs no record
            crowd.close()

    def _question(self, request: Request) -> Question:
        key = f"{self.sampling.seed}/{self.row.label}/{request.prompt_id}/{request.repeat}/{request.turn}"
        return Question(
            ids=request.ids,
            budget=request.rule.budget,
            stop_ids=request.rule.stop_ids,
            temperature=self.sampling.temperature if request.temperature is None else request.temperature,
            top_k=self.sampling.top_k,
            top_p=self.sampling.top_p,
            seed=int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1,
            ended=_ended_by(request.rule),
        )

    def _check_ends(self, output: Output, arrivals: Iterator[Arrival]) -> None:
        """Check that an engine that knows where an answer ends has ended it there; not timed."""
        ended = output.reason == "length" or (output.reason == "stop" and self._backend.knows_stop_ids)
        if ended and any(arrival.ids or arrival.text for arrival in arrivals):
            why = "its budget" if output.reason == "length" else "the token that ends an answer"
            raise EngineFault(f"it continued after {why}, which it should not")


def _ended_by(rule: StopRule) -> Callable[[Sequence[int]], bool]:
    """A stop rule applied to one growing answer; only stop strings matter."""
    if not rule.stops:
        return lambda ids: False
    output = Output(rule)

    def ended(ids: Sequence[int]) -> bool:
        if output.reason is None:
            output.extend(ids[len(output.ids) :])
        return output.reason is not None

    return ended
