"""Race: the answers of several methods to one prompt, each token when it came. From stored step times alone; no torch.

A method's clock starts with its own request: the runs were interleaved, the race puts them side by side.
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

#: Methods that can be told apart side by side.
MOST = 4

_LONG = 24  # tokens: a shorter answer shows little of a method
_CUT = 64  # arrivals: where the end of a long answer begins moves by so many, or its lines would break anew each time


@dataclass(frozen=True)
class Arrival:
    """Tokens that came together, ``at_s`` seconds from the start of the request."""

    at_s: float
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Moment:
    """A lane at one time: arrivals, tokens and forwards so far, and tokens per second since the first one came."""

    arrivals: int
    tokens: int
    forwards: int
    tok_s: float | None
    done: bool


@dataclass(frozen=True)
class Lane:
    """One method's answer; the prefill's arrival first, then each forward's."""

    method: str
    arrivals: Sequence[Arrival]

    @property
    def end_s(self) -> float:
        """When its last token came."""
        return self.arrivals[-1].at_s

    @property
    def tokens(self) -> int:
        """Of the whole answer."""
        return self._so_far[-1]

    @cached_property
    def _so_far(self) -> list[int]:
        return list(accumulate((len(arrival.tokens) for arrival in self.arrivals), initial=0))

    def at(self, seconds: float) -> Moment:
        """What it had so many seconds after the start of its request."""
        arrived = bisect_right(self.arrivals, seconds, key=lambda arrival: arrival.at_s)
        tokens = self._so_far[arrived]
        done = arrived == len(self.arrivals)
        spent = (self.end_s if done else seconds) - self.arrivals[0].at_s
        speed = (tokens - 1) / spent if tokens > 1 and spent > 0 else None
        return Moment(arrived, tokens, max(0, arrived - 1), speed, done)

    def end_of(self, arrivals: int, characters: int) -> list[Token]:
        """The tokens of so many arrivals; of a long answer only the last ones, of so many characters and some more."""
        first = arrivals
        while first and characters > 0:
            first -= 1
            characters -= sum(len(token.text) for token in self.arrivals[first].tokens)
        first -= first % _CUT
        return [token for arrival in self.arrivals[first:arrivals] for token in arrival.tokens]


@dataclass(frozen=True)
class Race:
    """Answers to one prompt side by side; ``notes`` are what those who watch have to know, a sentence each."""

    prompt: str
    lanes: Sequence[Lane]
    notes: Sequence[str] = ()

    @property
    def end_s(self) -> float:
        """When the slowest is done."""
        return max(lane.end_s for lane in self.lanes)

    @property
    def result(self) -> str:
        """Who was how much faster on this prompt, from its tokens' times; the run's own figure is another."""
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
    """The race of 2 to :data:`MOST` methods, in that order, on a prompt that all answered (default: a :func:`typical`
    one).

    Raises UsageError for other methods or prompts, and for records from before each step had its time.
    """
    labels = [spec.label for spec in config.methods]
    for method in methods:
        if method not in labels:
            raise unknown_name("method in this run", method, labels)
    if not 2 <= len(methods) <= MOST or len({*methods}) < len(methods):
        raise UsageError(f"a race takes 2 to {MOST} different methods of the run, as in --race {','.join(labels[:2])}")
    answers = _answers(records, methods)
    if request is not None and request not in answers:
        raise unknown_name("prompt that all of them answered", request, answers)
    if not answers:
        raise UsageError(f"no prompt was answered by all of {', '.join(methods)}; race methods that answered the same")
    chosen = answers[request or typical(answers, methods)]
    notes = []
    if config.concurrency > 1:
        notes.append(f"{config.concurrency} sequences ran at once: times are those in which an answer's reader waited")
    if config.trace:
        notes.append("the run was traced, which slows its steps")
    if made_up := [method for method in methods if method in config.simulated]:
        notes.append(f"acceptance of {', '.join(made_up)} was simulated: its text means nothing")
    first = methods[0]
    if others := [method for method in methods if chosen[method].output_ids != chosen[first].output_ids]:
        notes.append(f"{first} did not write the tokens of {', '.join(others)}")
    name = chosen[first].prompt_id
    if any(r.prompt_id == name and (r.repeat, r.turn) != (0, 1) for r in records):
        notes.append("of its turns and repeats the first is shown")
    return Race(name, [lane(chosen[method]) for method in methods], notes)


def lane(record: RequestRecord) -> Lane:
    """An answer with the time of each of its tokens.

    Where several sequences share the engine, a request's share of each step is stretched evenly so that the answer
    takes the seconds that it took.
    """
    if record.step_s is None:
        raise UsageError(f"{record.request_id} was recorded before each step had its time; repeat its run to race it")
    ends = accumulate(step_seconds(record, shared=False), initial=record.ttft_s)
    return Lane(record.method, [Arrival(end, step.tokens) for end, step in zip(ends, steps(record), strict=True)])


def typical(answers: Mapping[str, Mapping[str, RequestRecord]], methods: Sequence[str]) -> str:
    """The most representative prompt: its speed ratios are closest to the overall ratios.

    The distance is the largest of the logarithms of the speedups over the first method. Answers of some length that do
    not end in a loop come first where there are any, then those of some length.
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
    """First answers of the first turn, of prompts that all of the methods answered."""
    found: dict[str, dict[str, RequestRecord]] = {}
    for record in records:
        if record.method in methods and (record.repeat, record.turn) == (0, 1):
            found.setdefault(record.prompt_id, {})[record.method] = record
    return {prompt: of for prompt, of in found.items() if len(of) == len(methods)}


def _seconds_per_token(records: Sequence[RequestRecord]) -> float:
    tokens = sum(record.decoded_tokens for record in records)
    return sum(record.decode_s for record in records) / tokens if tokens > 0 else 0.0


def _pace(of: Lane) -> float:
    """Seconds per token after the first."""
    return (of.end_s - of.arrivals[0].at_s) / (of.tokens - 1) if of.tokens > 1 else 0.0
