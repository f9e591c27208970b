"""A row of another engine: timed by our clock, ended by our stop rule, and written in our records.

t0 is when the request is handed over; tokens that arrive together share a time. Definitions are those of
:mod:`specbench.runner.loop`; if an engine's first arrival has several tokens, none of them counts as decoded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from specbench.backends import Arrival, Backend, EngineCounters, Question, Row, Served
from specbench.common import EngineFault, UsageError, resident_bytes
from specbench.engine import Sampling
from specbench.results import EngineFacts, RequestRecord
from specbench.runner.loop import Clock
from specbench.runner.record import Request, answer_fields
from specbench.runner.stop import Output, StopRule

Encode = Callable[[str], Sequence[int]]


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

    def decode(self, requests: Sequence[Request], number: int) -> Iterator[RequestRecord]:
        """Answer requests one after the other; yield each as it ends. ``number`` is stored with each record.

        Raises EngineFault naming the row if the engine died, stalled, or returned something unexpected.
        """
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
        rule = request.rule
        answer = _Answer(Output(rule), self._served.model.vocab_size)
        if self.facts is not None and not self.facts.ids:
            answer.encode = lambda text: self._served.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        question = self._question(request)
        started = self._clock()
        arrivals = iter(self._backend.ask(question))
        try:
            for arrival in arrivals:
                if answer.take(arrival):
                    break
            if answer.encode is not None and answer.output.reason is None:
                answer.output.reason = self._backend.counters().finish
            if answer.output.reason is None or not answer.at:
                raise EngineFault(
                    f"it ended an answer after {len(answer.output.ids)} of {rule.budget} tokens, and none of them ends "
                    "one; its own stop rule is another"
                )
            if answer.encode is None:
                self._check_ends(answer.output, arrivals)
        finally:
            close = getattr(arrivals, "close", None)
            if close is not None:
                close()
        counted = self.facts.counts if self.facts else "forwards"
        return answer.record(self.row.label, request, self._backend.counters(), counted, (origin, started), number)

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


@dataclass
class _Answer:
    """An answer as it arrives. Times in nanoseconds."""

    output: Output
    vocabulary: int
    encode: Encode | None = None
    text: str = ""
    at: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def take(self, arrival: Arrival) -> bool:
        """Add an arrival; return whether the answer has ended."""
        ids = self._ids(arrival)
        for one in ids:
            if type(one) is not int or not 0 <= one < self.vocabulary:
                raise EngineFault(f"it sent {str(one)[:40]!r} as a token id of a vocabulary of {self.vocabulary}")
        if not ids:
            return False
        if self.at and arrival.at_ns < self.at[-1]:
            raise EngineFault("its tokens arrived before earlier ones")
        self.at.append(arrival.at_ns)
        self.kept.append(self.output.extend(ids))
        return self.output.reason is not None

    def _ids(self, arrival: Arrival) -> Sequence[int]:
        if self.encode is None:
            if arrival.text and not arrival.ids:
                raise EngineFault("it sent text and no token ids")
            return arrival.ids
        # Text only: the text so far is tokenised again, and an arrival gets the ids that are new with it.
        self.text += arrival.text
        known = len(self.output.ids)
        return list(self.encode(self.text))[known:]

    def record(
        self, label: str, request: Request, counters: EngineCounters, counts: str, since: tuple[int, int], number: int
    ) -> RequestRecord:
        """Its record; ``since``: start of its segment, and time of the request."""
        output, (origin, started), second = self.output, since, 1e-9
        assert output.reason is not None
        first, last = self.at[0], self.at[-1]
        steps = [(late - early) * second for early, late in zip(self.at, self.at[1:], strict=False)]
        forwards = len(steps) if counts == "forwards" else (counters.forwards or 0)
        drafted = counters.draft_tokens
        return RequestRecord(
            **answer_fields(label, request, output),
            first_tokens=self.kept[0],
            accepted_lengths=self.kept[1:],
            tree_rows=0 if drafted is None else forwards + drafted,
            target_forwards=forwards,
            draft_forwards=0,
            draft_tokens=drafted,
            acceptance_histogram=None if counters.histogram is None else [*counters.histogram],
            start_s=(started - origin) * second,
            segment=number,
            ttft_s=(first - started) * second,
            decode_s=(last - first) * second,
            latency_s=(last - started) * second,
            prefill_share_s=(first - started) * second,
            decode_share_s=(last - first) * second,
            step_s=[round(step, 7) for step in steps],
            measures=dict(counters.own),
        )
