"""Figures of a run from the raw files of its folder, with nothing of specbench in it.

What the words mean is README's section of that name. It is written a second time, and differently, so that a mistake in
specbench's own statistics does not agree with itself: `tests/test_pages.py` holds the pages to what is found here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Fewest prompts, or blocks of them, of an interval: the range of five values holds the median in 94% of cases only.
FEWEST = 6

#: Draws of an interval here, and of the one that a page quotes. An end is a quantile of them, and uncertain by as much.
DRAWS, THEIR_DRAWS = 20_000, 10_000

#: Standard errors of that quantile which two sound intervals may differ by: one in two thousand differs by more.
APART = 3.5


@dataclass(frozen=True)
class Answer:
    """A line of ``requests.jsonl``, of either schema.

    Attributes:
        line: its content.
        shared: sequences were stepped together, so that its share of the steps is what its time is.
    """

    line: dict[str, Any]
    shared: bool

    def __getitem__(self, name: str) -> Any:
        """A field."""
        return self.line[name]

    @property
    def key(self) -> tuple[str, int, int]:
        """Prompt, repeat and turn: what it has in common with its twin of another row."""
        return self["prompt_id"], self["repeat"], self.line.get("turn", 1)

    @property
    def first(self) -> int:
        """Tokens that came with the first arrival, which no one's clock saw decoded."""
        return int(self.line.get("first_tokens", 1))

    @property
    def decoded(self) -> int:
        """Tokens after the first arrival."""
        return int(self["output_tokens"]) - self.first

    @property
    def decode_s(self) -> float:
        """Seconds of these."""
        return float(self["decode_share_s" if self.shared else "decode_s"])

    @property
    def whole_s(self) -> float:
        """Seconds from the prompt on."""
        return float(self["prefill_share_s"]) + self.decode_s if self.shared else float(self["latency_s"])

    @property
    def text_ids(self) -> list[int]:
        """Ids of its text: without the stop token, and without what belongs to a stop string."""
        kept = self["output_tokens"] - self["stop_tail_tokens"] - int(self["finish_reason"] == "stop")
        return list(self["output_ids"][: max(kept, 0)])

    @cached_property
    def loop(self) -> int:
        """Tokens of the loop that its text ends in: three rounds or more of at most 48 tokens, 16 in all; else 0."""
        ids, longest = np.array(self.text_ids), 0
        for period in range(1, min(48, len(ids) // 3) + 1):
            unlike = np.flatnonzero(ids[period:] != ids[:-period])
            length = len(ids) - (int(unlike[-1]) + 1 if unlike.size else 0)
            longest = max(longest, length if length >= 3 * period else 0)
        return longest if longest >= 16 else 0

    def within(self, start: int, end: int) -> tuple[float, float, float]:
        """Seconds, tokens and forwards of its tokens after ``start`` up to ``end``, the first one not counted.

        A forward over the edge counts by its tokens inside; one that kept none counts where it stands.
        """
        kept = np.array(self["accepted_lengths"], dtype=float)
        if not kept.size:
            return 0.0, 0.0, 0.0
        ends = kept.cumsum() + self.first - 1
        inside = np.clip(np.minimum(ends, end) - np.maximum(ends - kept, start), 0, None)
        empty = (kept == 0) & (ends > start) & (ends <= end)
        share = np.where(kept > 0, inside / np.maximum(kept, 1), empty)
        steps = np.array(self.line.get("step_s") or np.ones(len(kept)))
        return float(share @ steps * self.decode_s / steps.sum()), float(inside.sum()), float(share.sum())


@dataclass(frozen=True)
class Drawn:
    """A figure that depends on random draws: what it is with this seed can be between these with another.

    Attributes:
        least, most: the ends, as far apart as :data:`APART` allows.
    """

    least: float
    most: float


@dataclass(frozen=True)
class Ratio:
    """Seconds per token of one row over those of another.

    Attributes:
        sums: by what was timed apart (prompts, or blocks of them): seconds and tokens of the one, then of the other.
    """

    sums: Floats

    @property
    def units(self) -> int:
        """Prompts, or blocks of them."""
        return int(self.sums.shape[1])

    @property
    def value(self) -> float:
        """The ratio."""
        seconds, tokens, other_seconds, other_tokens = self.sums.sum(axis=1)
        return float((seconds / tokens) / (other_seconds / other_tokens))

    @cached_property
    def error(self) -> float:
        """Standard error of its logarithm, by the delta method."""
        parts = self.sums / self.sums.sum(axis=1, keepdims=True)
        influence = parts[0] - parts[1] - parts[2] + parts[3]
        return math.sqrt(float(influence @ influence) * self.units / (self.units - 1))

    @cached_property
    def distances(self) -> Floats:
        """Sorted, how many standard errors of its own the logarithm of each resample lies from that of all."""
        drawn, count = _drawn(self.units), self.units
        totals = drawn @ self.sums.T
        logs = np.log(totals) @ _SIGNS - math.log(self.value)
        spread = np.zeros(len(drawn))
        for one in range(4):
            for two in range(one, 4):
                product = drawn @ (self.sums[one] * self.sums[two]) / (totals[:, one] * totals[:, two])
                spread += _SIGNS[one] * _SIGNS[two] * (1 + (one != two)) * product
        spread = np.maximum(spread, 0) * count / (count - 1)
        # A few prompts can be drawn all alike: a share of the sample's own spread keeps the quotient finite.
        return np.sort(np.abs(logs) / np.sqrt(spread + (self.error**2 - spread) / count**2))

    def quantile(self, apart: float = 0.0) -> float:
        """Standard errors from the value to an end of its 95% interval; ``apart`` errors of that quantile further."""
        error = math.sqrt(0.05 * 0.95 * (1 / DRAWS + 1 / THEIR_DRAWS))
        return float(np.quantile(self.distances, 0.95 + apart * error))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95% interval; None of too few prompts."""
        if self.units < FEWEST or self.error == 0:
            return None
        half = math.exp(self.quantile() * self.error)
        return self.value / half, self.value * half

    @property
    def tells(self) -> Drawn:
        """The difference that such prompts show in four of five cases, as a share; the interval's quantile is in it."""
        errors = [self.quantile(apart) + NormalDist().inv_cdf(0.8) for apart in (-APART, APART)]
        return Drawn(*(math.expm1(count * self.error) for count in errors))

    def has(self, low: str, high: str) -> bool:
        """Whether an interval as printed can be this one's, drawn by another seed.

        Both ends are as far from the value on the scale of logarithms, so one distance has to print as both; and that
        distance is a quantile of draws, which two seeds find as far apart as :data:`APART` allows.
        """
        if self.units < FEWEST or self.error == 0:
            return False
        allowed = [(self.quantile(-APART), self.quantile(APART))]
        for end, side in ((low, -1), (high, 1)):
            half = 0.5 * 10.0 ** -len(end.partition(".")[2]) + 1e-9
            logs = [side * math.log(max(float(end) + way * half, 1e-9) / self.value) for way in (-1, 1)]
            allowed.append((min(logs) / self.error, max(logs) / self.error))
        return max(least for least, _ in allowed) <= min(most for _, most in allowed)


@dataclass(frozen=True)
class OverBlocks:
    """A figure of requests that were sent in blocks, with the percentile bootstrap over blocks.

    Attributes:
        blocks: values of each block's requests.
        of: the figure of some values.
        share: whether it is a share of requests. The interval of 0 or 1 is Wilson's, as if each block were one request.
    """

    blocks: list[Floats]
    of: Callable[[Floats], float]
    share: bool = False

    @property
    def value(self) -> float:
        """The figure of all requests."""
        return float(self.of(np.concatenate(self.blocks)))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95% interval; None of too few blocks."""
        return None if len(self.blocks) < FEWEST else (self._end(0.025), self._end(0.975))

    @cached_property
    def _draws(self) -> Floats:
        picked = np.random.Generator(np.random.Philox(20_27)).integers(len(self.blocks), size=(4000, len(self.blocks)))
        return np.array([self.of(np.concatenate([self.blocks[at] for at in draw])) for draw in picked])

    def _end(self, share: float, apart: float = 0.0) -> float:
        if self.share and self.value in (0.0, 1.0):
            _, low, high = wilson(round(self.value * len(self.blocks)), len(self.blocks))
            return low if share < 0.5 else high
        error = math.sqrt(share * (1 - share) * (1 / 4000 + 1 / 2000))
        return float(np.quantile(self._draws, min(max(share + apart * error, 0.0), 1.0)))

    def has(self, low: str, high: str, scale: float = 1.0) -> bool:
        """Whether an interval as printed, multiplied by ``scale``, can be this one's, drawn by another seed."""
        return len(self.blocks) >= FEWEST and all(
            scale * self._end(share, -APART) - half <= float(end) <= scale * self._end(share, APART) + half
            for end, share in ((low, 0.025), (high, 0.975))
            for half in [0.5 * 10.0 ** -len(end.partition(".")[2]) + 1e-9]
        )


_SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


@cache
def _drawn(count: int) -> Floats:
    """How often each of ``count`` prompts is in each draw."""
    picked = np.random.Generator(np.random.Philox(20_26)).integers(count, size=(DRAWS, count))
    picked += np.arange(DRAWS)[:, None] * count
    return np.bincount(picked.ravel(), minlength=DRAWS * count).reshape(DRAWS, count).astype(np.float64)


@dataclass(frozen=True)
class Run:
    """A run's folder, or that of one concurrency of a sweep.

    Attributes:
        head: ``run.json``.
        answers: by row, then by prompt, repeat and turn.
        verdicts: by request, where there are any.
        bandwidth: ``bandwidth.json``, where there is one.
        likelihoods: by request, the log-likelihood of its text and the text's tokens, where there are any.
    """

    head: dict[str, Any]
    answers: dict[str, dict[tuple[str, int, int], Answer]]
    verdicts: dict[str, bool]
    bandwidth: dict[str, Any] | None
    likelihoods: dict[str, tuple[float, int]]

    @property
    def labels(self) -> list[str]:
        """Of its rows."""
        return [spec["label"] for spec in self.head["methods"]]

    def everywhere(self, answer: Answer) -> bool:
        """Whether every row has an answer to its prompt: of a sweep, those that the best cell was chosen by."""
        return all(answer.key in row for row in self.answers.values())

    def row(self, label: str, keep: Callable[[Answer], bool] = lambda answer: True) -> list[Answer]:
        """Answers of a row."""
        return [answer for answer in self.answers[label].values() if keep(answer)]

    def speedup(
        self, label: str, over: str = "ar", keep: Callable[[Answer], bool] = lambda answer: True, *, e2e: bool = False
    ) -> Ratio:
        """Seconds per token of ``over`` over those of a row, on the requests that both have."""

        def cost(answer: Answer) -> tuple[float, float]:
            return (answer.whole_s, answer["output_tokens"]) if e2e else (answer.decode_s, answer.decoded)

        return self._ratio(label, over, keep, cost)

    def in_window(self, label: str, start: int, end: int = 1 << 30) -> Ratio:
        """The same of tokens after ``start`` up to ``end``, of the answers that get there."""

        def there(answer: Answer) -> bool:
            return all(one.within(start, end)[1] > 0 for one in (answer, self.answers["ar"][answer.key]))

        return self._ratio(label, "ar", there, lambda answer: answer.within(start, end)[:2])

    def at_rate(self, at: int) -> Callable[[Answer], bool]:
        """Whether an answer's request arrived at a rate, the first is 0."""
        count = len(self.head["load"]["points"])
        return lambda answer: answer["repeat"] % count == at

    def latency_over(self, label: str, at: int) -> Ratio:
        """AR's latency over a row's at a rate."""
        return self._ratio(label, "ar", self.at_rate(at), lambda answer: (float(answer["latency_s"]), 1.0))

    def blocks(self, label: str, at: int, figure: Callable[[Answer], float]) -> list[Floats]:
        """A figure of each request at a rate, by the block in which it was sent."""
        found: dict[int, list[float]] = {}
        for answer in self.row(label, self.at_rate(at)):
            found.setdefault(answer["segment"], []).append(figure(answer))
        return [np.array(some) for some in found.values()]

    def good(self, label: str, at: int) -> OverBlocks:
        """Share of the requests at a rate that met every objective."""
        slo = self.head["load"]["slo"]

        def met(answer: Answer) -> float:
            later = int(answer["output_tokens"]) - answer.first
            each = (answer["latency_s"] - answer["ttft_s"]) / later if later > 0 else 0.0
            times = {"ttft": answer["ttft_s"], "tpot": each, "latency": answer["latency_s"]}
            return float(all(times[name] <= most for name, most in slo.items()))

        return OverBlocks(self.blocks(label, at, met), lambda values: float(values.mean()), share=True)

    def median_latency(self, label: str, at: int) -> OverBlocks:
        """Median seconds from arrival to the last token at a rate."""
        latencies = self.blocks(label, at, lambda answer: float(answer["latency_s"]))
        return OverBlocks(latencies, lambda values: float(np.median(values)))

    def _ratio(
        self, label: str, over: str, keep: Callable[[Answer], bool], cost: Callable[[Answer], tuple[float, float]]
    ) -> Ratio:
        mine, other = self.answers[label], self.answers[over]
        pairs = [(other[key], mine[key]) for key in mine if key in other and keep(mine[key])]
        unit = _together(answer for pair in pairs for answer in pair)
        sums: dict[int, Floats] = {}
        for pair in pairs:
            at, costs = unit[pair[0].key[0]], np.array([*cost(pair[0]), *cost(pair[1])])
            sums[at] = sums.get(at, np.zeros(4)) + costs
        return Ratio(np.array([*sums.values()]).T)

    def looping(self, label: str) -> int:
        """Answers that end in a loop."""
        return sum(answer.loop > 0 for answer in self.row(label))

    def agreement(self, label: str) -> float:
        """Share of positions at which a row's answers have the token of the base's; the longer answer counts."""
        mine, base = self.answers[label], self.answers["ar@base"]
        pairs = [(mine[key]["output_ids"], base[key]["output_ids"]) for key in mine if key in base]
        return sum(np.equal(*np.array([*zip(*pair, strict=False)]).T).sum() for pair in pairs) / sum(
            max(map(len, pair)) for pair in pairs
        )

    def likelihood(self, label: str) -> float:
        """Log-likelihood of a row's texts per token."""
        found = [self.likelihoods[answer["request_id"]] for answer in self.row(label)]
        return sum(total for total, _ in found) / sum(count for _, count in found)

    def without_loops(self, label: str, over: str = "ar") -> Callable[[Answer], bool]:
        """Whether an answer is of a prompt on which neither row loops."""
        loops = {answer.key[0] for one in (label, over) for answer in self.row(one) if answer.loop}
        return lambda answer: answer.key[0] not in loops

    def passed(self, label: str) -> int:
        """Right answers."""
        return sum(self.verdicts[answer["request_id"]] for answer in self.row(label))

    def share(self, label: str) -> float:
        """Share of memory's bandwidth that a row's forwards take: weights once each, and the cache before them."""
        assert self.bandwidth is not None
        size, cached, forwards, seconds = self.bandwidth["forwards"][label], 0.0, 0, 0.0
        for answer in self.row(label):
            kept = np.array([answer.first - 1, *answer["accepted_lengths"][:-1]]).cumsum()
            own = answer["target_forwards"]
            cached += own * (answer["prompt_tokens"] + (float(kept.mean()) if answer["accepted_lengths"] else 0.0))
            forwards, seconds = forwards + own, seconds + answer["decode_s"]
        nbytes = np.interp(cached / forwards, size["contexts"], size["nbytes"])
        return float(forwards * nbytes / seconds / median(self.memory))

    @property
    def memory(self) -> list[float]:
        """What the probe read, bytes a second."""
        assert self.bandwidth is not None
        return [reading["bytes_per_s"] for reading in self.bandwidth["readings"]]


def _together(answers: Iterable[Answer]) -> dict[str, int]:
    """Of each prompt what was timed with it: itself, or the block of those that were stepped together.

    A stretch of steps of either row ties its prompts together, and a prompt the stretches that it is in.
    """
    unit: dict[str, int] = {}
    stretches: dict[tuple[str, int], set[str]] = {}
    for answer in answers:
        unit.setdefault(answer.key[0], len(unit))
        if answer.shared:
            stretches.setdefault((answer["method"], answer["segment"]), set()).add(answer.key[0])
    for prompts in stretches.values():
        joined = {unit[prompt] for prompt in prompts}
        unit.update({prompt: min(joined) for prompt, number in unit.items() if number in joined})
    return unit


@cache
def read(folder: Path) -> Run:
    """A run from its raw files."""
    head = json.loads((folder / "run.json").read_text())
    answers: dict[str, dict[tuple[str, int, int], Answer]] = {spec["label"]: {} for spec in head["methods"]}
    for line in (folder / "requests.jsonl").read_text().splitlines():
        answer = Answer(json.loads(line), head["concurrency"] > 1)
        answers[answer["method"]][answer.key] = answer
    judged, memory = folder / "verdicts.jsonl", folder / "bandwidth.json"
    lines = map(json.loads, judged.read_text().splitlines()) if judged.exists() else ()
    verdicts = {line["request"]: bool(line["passed"]) for line in lines}
    likely = folder / "likelihoods.jsonl"
    texts = map(json.loads, likely.read_text().splitlines()) if likely.exists() else ()
    likelihoods = {request: (text["log_likelihood"], text["tokens"]) for text in texts for request in text["requests"]}
    return Run(head, answers, verdicts, json.loads(memory.read_text()) if memory.exists() else None, likelihoods)


def tokens(answers: Sequence[Answer]) -> int:
    """Kept tokens."""
    return sum(answer["output_tokens"] for answer in answers)


def per_forward(answers: Sequence[Answer]) -> float:
    """Decoded tokens over target forwards after the prefill."""
    return sum(answer.decoded for answer in answers) / sum(answer["target_forwards"] for answer in answers)


def as_papers_count(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens per forward by each definition of a publication, by loops over the lengths of the steps."""
    steps = [[*answer["accepted_lengths"]] for answer in answers]
    whole = [[*lengths[:-1], lengths[-1] + a["overshoot_tokens"]] for a, lengths in zip(answers, steps, strict=True)]
    own = [float(np.mean(lengths)) for lengths in steps]
    ended = [mean for mean, answer in zip(own, answers, strict=True) if answer["finish_reason"] == "stop"]
    return {
        "pooled": float(np.mean(np.concatenate(steps))),
        "per-answer": float(np.mean(own)),
        "per-ended-answer": float(np.mean(ended)),
        "jacobi-forcing": len(ended) / sum(1 / mean for mean in ended),
        "with-prefill": float(np.mean(np.concatenate([[answer.first for answer in answers], *steps]))),
        "rounds": float(np.mean(np.concatenate(whole))),
    }


def per_second(answers: Sequence[Answer]) -> float:
    """Decoded tokens over their seconds."""
    return sum(answer.decoded for answer in answers) / sum(answer.decode_s for answer in answers)


def step_ms(answers: Sequence[Answer]) -> float:
    """Milliseconds of a target forward, drafting included."""
    return 1e3 * sum(answer.decode_s for answer in answers) / sum(answer["target_forwards"] for answer in answers)


def rows(answers: Sequence[Answer]) -> float:
    """Rows of a target forward."""
    return sum(answer["tree_rows"] for answer in answers) / sum(answer["target_forwards"] for answer in answers)


def cut(answers: Sequence[Answer]) -> float:
    """Share of the answers that ended at the budget."""
    return sum(answer["finish_reason"] == "length" for answer in answers) / len(answers)


def wilson(right: int, count: int) -> tuple[float, float, float]:
    """A share with its 95% interval by Wilson."""
    z, share = 1.959964, right / count
    middle, half = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return share, (middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)


def pooled(runs: Sequence[Run], label: str) -> Ratio:
    """The speedup of a row over all prompts of several runs."""
    return Ratio(np.concatenate([run.speedup(label).sums for run in runs], axis=1))
