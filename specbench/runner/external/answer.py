"""An answer of another engine as it arrives, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specbench.backends import Arrival, EngineCounters
from specbench.common import EngineFault
from specbench.results import RequestRecord
from specbench.runner.record import Request, answer_fields
from specbench.runner.stop import Output

Encode = Callable[[str], Sequence[int]]


@dataclass
class Answer:
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

    def check(self) -> None:
        """Raise an EngineFault if the engine ended the answer where the run's stop rule does not end it."""
        if self.output.reason is None or not self.at:
            raise EngineFault(
                f"it ended an answer after {len(self.output.ids)} of {self.output.rule.budget} tokens, and none of "
                "them ends one; its own stop rule is another"
            )

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
