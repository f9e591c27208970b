"""Replay the answers of several methods to one prompt side by side, from stored step times.

Each method's clock starts with its own request, because the requests of a run are interleaved.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from specbench.analysis import loops_at_its_end, step_seconds
from specbench.common import UsageError, unknown_name
from specbench.report.answers.generation import Token, steps
from specbench.results import RequestRecord, RunConfig

#: Most methods in one race.
MOST = 4

_LONG = 24  # tokens; shorter answers show little of a method
_CUT = 64  # arrivals; a long answer scrolls in such steps, because each shift breaks all lines anew


@dataclass(frozen=True)
class Arrival:
    """Tokens that arrived together, ``at_s`` seconds after the start of the request."""

    at_s: float
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Moment:
    """A lane at one time: arrivals, tokens and forwards so far, and tokens per second since the first token."""

    arrivals: int
    tokens: int
    forwards: int
    tok_s: float | None
    done: bool


@dataclass(frozen=True)
class Lane:
    """One method's answer: the arrival of the prefill, then of each forward."""

    method: str
    arrivals: Sequence[Arrival]

    @property
    def end_s(self) -> float:
        """Arrival time of the last token."""
        return self.arrivals[-1].at_s

    @property
    def tokens(self) -> int:
        """Number of tokens of the whole answer."""
        return self._so_far[-1]

    @cached_property
    def _so_far(self) -> list[int]:
        return list(accumulate((len(arrival.tokens) for arrival in self.arrivals), initial=0))

    def at(self, seconds: float) -> Moment:
        """The state of the lane, ``seconds`` after the start of its request."""
        arrived = bisect_right(self.arrivals, seconds, key=lambda arrival: arrival.at_s)
        tokens = self._so_far[arrived]
        done = arrived == len(self.arrivals)
        spent = (self.end_s if done else seconds) - self.arrivals[0].at_s
        later = tokens - len(self.arrivals[0].tokens)
        speed = later / spent if later > 0 and spent > 0 else None
        return Moment(arrived, tokens, max(0, arrived - 1), speed, done)

    def end_of(self, arrivals: int, characters: int) -> list[Token]:
        """Tokens of the first ``arrivals`` arrivals; of long answers only the end, at least ``characters`` long."""
        first = arrivals
        while first and characters > 0:
            first -= 1
            characters -= sum(len(token.text) for token in self.arrivals[first].tokens)
        first -= first % _CUT
        return [token for arrival in self.arrivals[first:arrivals] for token in arrival.tokens]


@dataclass(frozen=True)
class Race:
    """Answers to one prompt side by side; ``notes`` are caveats for the viewer, a sentence each."""

    prompt: str
    lanes: Sequence[Lane]
    notes: Sequence[str] = ()

    @property
    def end_s(self) -> float:
        """Time at which the slowest lane ends."""
        return max(lane.end_s for lane in self.lanes)

    @property
    def result(self) -> str:
        """Speeds on this prompt relative to the first method; the run's speedup is over all prompts."""
        first, *others = self.lanes
        pace = {lane.method: _pace(lane) for lane in self.lanes}
        mine = pace[first.method]
        found = [
            f"{other.method} at {mine / pace[other.method]:.2f} times {first.method}'s speed"
            for other in others
            if mine and pace[other.method]
        ]
        return f"On this prompt {', '.join(found)}, by seconds per token after the first." if found else ""


def race(config: RunConfig, records: Sequence[RequestRecord], methods: Sequence[str], request: str | None) -> Race:
    """The race of 2 to :data:`MOST` methods, in this order, on a prompt that all of them answered (default: a
    :func:`typical` one).

    Raises UsageError for unknown methods or prompts, and for old records without step times.
    """
    labels = [spec.label for spec in config.methods]
    for method in methods:
        if method not in labels:
            raise unknown_name("method", method, labels, "in this run")
    if not 2 <= len(methods) <= MOST or len({*methods}) < len(methods):
        raise UsageError(f"a race takes 2 to {MOST} different methods of the run, as in --race {','.join(labels[:2])}")
    answers = _answers(records, methods)
    if request is not None and request not in answers:
        raise unknown_name("prompt", request, answers, choose="answered by all of them")
    if not answers:
        raise UsageError(
            f"cannot race {', '.join(methods)}: no prompt was answered by all; choose methods with common prompts"
        )
    chosen = answers[request or typical(answers, methods)]
    notes = []
    if config.concurrency > 1 or config.load:
        notes.append(f"{config.concurrency} sequences ran at once: times are those of a reader waiting for one answer")
    if config.trace:
        notes.append("the run was traced, which slows its steps")
    if made_up := [method for method in methods if method in config.simulated]:
        notes.append(f"acceptance of {', '.join(made_up)} was simulated: its text means nothing")
    first = methods[0]
    if others := [method for method in methods if chosen[method].output_ids != chosen[first].output_ids]:
        notes.append(f"the tokens of {first} differ from those of {', '.join(others)}")
    name = chosen[first].prompt_id
    if any(r.prompt_id == name and (r.repeat, r.turn) != (0, 1) for r in records):
        notes.append("only the first turn and repeat is shown")
    return Race(name, [lane(chosen[method]) for method in methods], notes)


def lane(record: RequestRecord) -> Lane:
    """An answer with the arrival time of each token.

    If several sequences share the engine, a request's share of each step is scaled so that the answer takes its real
    latency.
    """
    if record.step_s is None:
        raise UsageError(f"cannot race {record.request_id}: its record has no step times; repeat its run")
    start = record.ttft_s if record.first_tokens else record.latency_s - record.decode_s
    ends = accumulate(step_seconds(record, shared=False), initial=start)
    return Lane(record.method, [Arrival(end, step.tokens) for end, step in zip(ends, steps(record), strict=True)])


def typical(answers: Mapping[str, Mapping[str, RequestRecord]], methods: Sequence[str]) -> str:
    """The most representative prompt: its speed ratios are closest to the overall ratios.

    The distance is the largest difference in log speedup over the first method. Long answers without repetitive
    endings are preferred, then long answers.
    """
    first, *others = methods

    def speedups(mine: Sequence[Mapping[str, RequestRecord]]) -> list[float]:
        each = {method: _seconds_per_token([of[method] for of in mine]) for method in methods}
        return [math.log(each[first] / each[other]) if each[first] and each[other] else math.inf for other in others]

    overall = speedups(list(answers.values()))
    long = [prompt for prompt, of in answers.items() if all(r.output_tokens >= _LONG for r in of.values())]
    sound = [prompt for prompt in long if not any(loops_at_its_end(r) for r in answers[prompt].values())]

    def distance(prompt: str) -> float:
        pairs = zip(speedups([answers[prompt]]), overall, strict=True)
        return max((abs(mine - all_of) for mine, all_of in pairs if math.isfinite(all_of)), default=0.0)

    return min(sound or long or answers, key=distance)


def _answers(records: Sequence[RequestRecord], methods: Sequence[str]) -> dict[str, dict[str, RequestRecord]]:
    """First answers of the first turn, for prompts that all methods answered."""
    found: dict[str, dict[str, RequestRecord]] = {}
    for record in records:
        if record.method in methods and (record.repeat, record.turn) == (0, 1):
            found.setdefault(record.prompt_id, {})[record.method] = record
    return {prompt: of for prompt, of in found.items() if len(of) == len(methods)}


def _seconds_per_token(records: Sequence[RequestRecord]) -> float:
    tokens = sum(record.decoded_tokens for record in records)
    return sum(record.decode_s for record in records) / tokens if tokens > 0 else 0.0


def _pace(of: Lane) -> float:
    """Seconds per token after the first arrival."""
    later = of.tokens - len(of.arrivals[0].tokens)
    return (of.end_s - of.arrivals[0].at_s) / later if later else 0.0
