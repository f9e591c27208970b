"""Send requests to a worker process (see ``worker.py``), one after another or several at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specbench.backends import protocol
from specbench.backends.protocol import Arrival, EngineCounters, Question, Served, Several
from specbench.common import Child, EngineFault, Stalled, one_line
from specbench.results import acceptance_histogram

_WORKER = Path(__file__).with_name("worker.py")

#: Descriptions of the figures in :attr:`EngineCounters.own`.
PIPE = {"pipe_share": "share of a step's time from its end in the worker to its arrival here; mean over steps"}


class WorkerBackend(protocol.Backend):
    """An engine in a worker process; a subclass calls :meth:`_launch` in its :meth:`start`."""

    answers_several = True

    def __init__(self, mode: str, options: Any, served: Served) -> None:
        super().__init__(mode, options, served)
        self._child: Child | None = None
        self._requests: Requests | None = None
        self._counters = EngineCounters()

    def _launch(
        self,
        python: str,
        file: str,
        outside: Mapping[str, str],
        removed: Sequence[str],
        engine: Mapping[str, Any],
        inside: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, Any]:
        """Start the worker, send it a first request, and return the versions that it reports.

        Args:
            file: name of the engine's file in this package.
            outside: environment variables of the process.
            removed: beginnings of environment variables that it removes.
            engine: the engine's settings.
            inside: environment variables that it then sets itself.
        """
        # Isolated (-I): without our PYTHONPATH, and without the worker's folder, whose modules have names of packages.
        command = [python, "-I", str(_WORKER), str(_WORKER.with_name(file))]
        self._child = Child(command, environment=outside, pipes=True)
        self._child.send(removed=list(removed), environment=dict(inside), engine=dict(engine))
        self._requests = Requests(self._child, self.options.timeout, self.served.model.vocab_size)
        ready = self._requests.started(self.options.start_timeout)
        for _ in self.ask(Question([self.served.model.pad_id], 1, frozenset())):
            pass
        return ready

    def ask(self, question: Question) -> Iterator[Arrival]:
        requests = self._started()
        self._counters = EngineCounters()
        number = requests.submit(question)
        running = True
        try:
            while running:
                for _, arrival in requests.poll(self.options.timeout):
                    if running := arrival is not None:
                        yield arrival
        except GeneratorExit:
            requests.give_up(number)
            requests.drain()
            raise
        finally:
            if not requests.busy:
                self._counters = requests.counters(number)

    def counters(self) -> EngineCounters:
        return self._counters

    def several(self) -> Several:
        return self._started()

    def processes(self) -> Sequence[int]:
        return () if self._child is None or not self._child.running else (self._child.pid,)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()

    def _started(self) -> Requests:
        assert self._requests is not None, "it has been started"
        return self._requests


class Requests(Several):
    """Requests of a worker that has its settings."""

    def __init__(self, child: Child, timeout: float, vocabulary: int) -> None:
        self._child, self._timeout, self._vocabulary = child, timeout, vocabulary
        self._number, self._heard = 0, 0.0
        self._running: dict[int, _Answer] = {}  # also those given up, until the worker reports their end
        self._ended: dict[int, EngineCounters] = {}

    @property
    def busy(self) -> bool:
        """Whether the worker has requests whose end it has not reported."""
        return bool(self._running)

    def started(self, within_s: float) -> Mapping[str, Any]:
        """Wait for the worker's first line."""
        return self._line(self._child.next(within_s, "start"))[1]

    def submit(self, question: Question) -> int:
        if not self._running:
            self._heard = time.monotonic()
        self._number += 1
        self._running[self._number] = _Answer()
        self._child.send(
            ask=self._number,
            ids=list(question.ids),
            budget=question.budget,
            stop_ids=sorted(question.stop_ids),
            temperature=question.temperature,
            top_k=question.top_k,
            top_p=question.top_p,
            seed=question.seed,
        )
        return self._number

    def poll(self, seconds: float) -> Sequence[tuple[int, Arrival | None]]:
        until = self._heard + self._timeout
        try:
            left = until - time.monotonic() if self._running else seconds
            at_ns, line = self._line(self._child.next(min(seconds, max(0.0, left)), "decode"))
        except Stalled:
            if self._running and time.monotonic() >= until:
                raise Stalled(f"it stalled: no reply for {self._timeout:g} s while it had to decode") from None
            return ()
        self._heard = time.monotonic()
        return list(self._arrivals(at_ns, line))

    def give_up(self, number: int) -> None:
        if number in self._running:
            self._ended[number] = self._running[number].counters(None)
            self._running[number].given_up = True
            self._child.send(give_up=number)

    def counters(self, number: int) -> EngineCounters:
        return self._ended.pop(number)

    def drain(self) -> None:
        """Wait until all requests have ended."""
        while self._running:
            self.poll(self._timeout)

    def close(self, wait: bool = True) -> None:
        for number, answer in self._running.items():
            if wait and not answer.given_up:
                self.give_up(number)
        if wait:
            self.drain()
        self._ended.clear()

    def _line(self, found: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if "failed" in found[1]:
            raise EngineFault(one_line(str(found[1]["failed"]), 300))
        return found

    def _arrivals(self, at_ns: int, line: Mapping[str, Any]) -> Iterator[tuple[int, Arrival | None]]:
        if "end" in line:
            answer = self._of(number := line["end"])
            counters = answer.counters(line.get("counters"))
            del self._running[number]
            if not answer.given_up:
                if not answer.at:
                    raise EngineFault("its worker ended an answer without tokens")
                self._ended[number] = counters
                yield number, None
            elif number in self._ended:  # the worker's counters are of the whole request
                self._ended[number] = counters
            return
        steps, stamp = line.get("steps"), line.get("ns")
        if not isinstance(steps, list) or not steps or not isinstance(stamp, int):
            raise EngineFault(f"its worker wrote a step without tokens: {one_line(repr(line), 80)}")
        for step in steps:
            try:
                number, ids, drafted = step
                wrong = not ids or any(type(one) is not int or not 0 <= one < self._vocabulary for one in ids)
            except (TypeError, ValueError):
                wrong = True
            if wrong:
                raise EngineFault(f"its worker wrote an invalid step: {one_line(repr(step), 80)}")
            answer = self._of(number)
            answer.take(at_ns, stamp, len(ids), drafted)
            if not answer.given_up:
                yield number, Arrival(at_ns, ids)

    def _of(self, number: Any) -> _Answer:
        if type(number) is not int or number not in self._running:
            raise EngineFault(f"its worker wrote about a request that does not run: {one_line(repr(number), 40)}")
        return self._running[number]


class _Answer:
    """Steps of one answer: when each arrived here, its tokens, and all draft tokens until then if known."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.given_up = False
        self._shares: list[float] = []
        self._tokens: list[int] = []
        self._drafted: list[Any] = []

    def take(self, at_ns: int, stamp: int, tokens: int, drafted: Any) -> None:
        """Add a step that ended in the worker at a time on the same clock."""
        if self.at and at_ns > self.at[-1] and 0 <= stamp <= at_ns:
            self._shares.append((at_ns - stamp) / (at_ns - self.at[-1]))
        self.at.append(at_ns)
        self._tokens.append(tokens)
        self._drafted.append(drafted)

    def counters(self, counted: Any) -> EngineCounters:
        """Return the engine's counters of the request.

        Those of an aborted request that was alone include steps whose tokens were not read.

        Args:
            counted: as the worker reports them at the end; None before it.
        """
        own = {"pipe_share": sum(self._shares) / len(self._shares)} if self._shares else {}
        if counted is not None and (
            not isinstance(counted, dict) or not all(type(value) is int for value in counted.values())
        ):
            raise EngineFault(f"its worker wrote invalid counters: {one_line(repr(counted), 80)}")
        if not counted:
            return self._counted_here(own)
        if not {"drafts", "draft_tokens", "accepted_tokens"} <= counted.keys():
            return EngineCounters(own=own)
        if counted["drafts"]:
            own["mean_acceptance_length"] = 1 + counted["accepted_tokens"] / counted["drafts"]
        if "decode_steps" in counted and not self.given_up:
            own["forwards_by_counters"] = counted["decode_steps"]
        return EngineCounters(
            draft_tokens=counted["draft_tokens"],
            accepted_tokens=counted["accepted_tokens"],
            histogram=_histogram(counted),
            own=own,
        )

    def _counted_here(self, own: dict[str, float]) -> EngineCounters:
        """Count accepted tokens by steps: all but one of those of a step with a draft."""
        if not self._drafted or any(type(drafted) is not int for drafted in self._drafted):
            return EngineCounters(own=own)
        drafts = [more - less for less, more in pairwise(self._drafted)]
        accepted = [tokens - 1 for tokens, draft in zip(self._tokens[1:], drafts, strict=True) if draft]
        if accepted:
            own["mean_acceptance_length"] = 1 + sum(accepted) / len(accepted)
        return EngineCounters(
            draft_tokens=sum(drafts), accepted_tokens=sum(accepted), histogram=acceptance_histogram(accepted), own=own
        )


def _histogram(counted: Mapping[str, int]) -> list[int] | None:
    """Drafts by accepted tokens, from vLLM's counter of each position; None if it has none."""
    positions = list(takewhile(bool, (counted.get(f"accepted_at_{at}") for at in count(1))))
    least = [counted["drafts"], *(each or 0 for each in positions), 0]
    return [more - less for more, less in pairwise(least)] if "accepted_at_1" in counted else None
