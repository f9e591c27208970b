"""Compare a method's requests with AR's: paired ratios and differences with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean
from typing import Any

from specbench.analysis import positions
from specbench.analysis.blocks import prompt_segments, timing_units
from specbench.analysis.figures import counts, quotient
from specbench.analysis.stats.interval import Interval
from specbench.analysis.stats.multiple import Many, Paired, many
from specbench.analysis.stats.power import detectable, prompts_needed
from specbench.analysis.stats.proportions import Difference, difference_verdict, paired_difference
from specbench.analysis.stats.ratio import PerPrompt, Ratio, paired_ratio, per_prompt, verdict
from specbench.results import (
    AccuracyDifference,
    AtPosition,
    Group,
    JointInterval,
    OverAr,
    OverBase,
    PerPromptFigures,
    PromptsNeeded,
    RequestRecord,
    Speedup,
)

BOOTSTRAP_SEED = 0

#: Level of all intervals.
LEVEL = 0.95

Key = tuple[str, int, int]  # prompt, repeat, turn


def compare_to_baseline(
    baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool
) -> OverAr:
    """Speedups over AR on the requests that both have; pairs of different length are kept and counted."""
    pairs = Pairs.of(baseline, mine, shared)
    ar, method = pairs.ar, pairs.mine
    steps = [
        quotient(sum(r.decoding_s(shared) for r in arm), sum(r.target_forwards for r in arm)) for arm in (ar, method)
    ]
    return OverAr(
        speedup=pairs.speedup(DECODE),
        e2e_speedup=pairs.speedup(END_TO_END),
        ttft_speedup=pairs.speedup(FIRST_TOKEN),
        step_ratio=quotient(steps[0], steps[1]),
        length_changed=sum(a.output_tokens != m.output_tokens for a, m in zip(ar, method, strict=True)),
        # Later turns whose history certainly differs from AR's, because its length does.
        prompt_changed=sum(a.prompt_tokens != m.prompt_tokens for a, m in zip(ar, method, strict=True)),
    )


@dataclass(frozen=True)
class Measure:
    """What a speedup measures: seconds of a request (its share of a shared engine's steps) and tokens."""

    seconds: Callable[[RequestRecord, bool], float]
    tokens: Callable[[RequestRecord], float]


DECODE = Measure(RequestRecord.decoding_s, lambda record: record.decoded_tokens)
END_TO_END = Measure(RequestRecord.whole_s, lambda record: record.output_tokens)
FIRST_TOKEN = Measure(RequestRecord.prefill_s, lambda record: 1.0)

#: Field of :class:`OverAr` -> measure.
MEASURES: Mapping[str, Measure] = {"speedup": DECODE, "e2e_speedup": END_TO_END, "ttft_speedup": FIRST_TOKEN}


@dataclass(frozen=True)
class Pairs:
    """Requests that two rows both have, in the same order.

    ``units`` has the independent unit of each pair: its prompt as it was sampled, or the block in which it was stepped.
    """

    ar: list[RequestRecord]
    mine: list[RequestRecord]
    shared: bool
    units: list[str]

    @classmethod
    def of(cls, baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool) -> Pairs:
        """The pairs of two rows."""
        keys = sorted(baseline.keys() & mine.keys())
        ar, method = [baseline[key] for key in keys], [mine[key] for key in keys]
        unit = timing_units([prompt_segments(ar), prompt_segments(method)], shared=shared)
        units = [unit[record.prompt_id] if shared else record.sample for record in ar]
        return cls(ar, method, shared, units)

    def paired(self, measure: Measure) -> Paired:
        """Seconds and tokens of the pairs."""
        arms = [
            ([measure.seconds(r, self.shared) for r in arm], [measure.tokens(r) for r in arm])
            for arm in (self.ar, self.mine)
        ]
        return Paired(arms[0], arms[1], self.units)

    def speedup(self, measure: Measure) -> Speedup | None:
        """AR's time per token over the other row's; None without common requests or without tokens."""
        if not self.units:
            return None
        paired = self.paired(measure)
        arms = paired.numerator, paired.denominator
        found = paired_ratio(*arms, seed=BOOTSTRAP_SEED, clusters=self.units)
        prompts = len({record.prompt_id for record in self.mine}) if self.shared else None
        return speedup_of(found, per_prompt(*arms, self.units), prompts)


def over_positions(pairs: Pairs) -> list[AtPosition]:
    """A method's speedup by position in the answer, in windows that some prompts reach."""
    reached = [min(a.output_tokens, m.output_tokens) - 1 for a, m in zip(pairs.ar, pairs.mine, strict=True)]
    found = []
    for window in positions.windows(max(reached, default=0)):
        there, whole = (_speedup_in(pairs, each) for each in (window, positions.Window(0, window.end)))
        if there is None:
            continue
        inside = partial(_tokens_in, window=window, shared=pairs.shared)
        mine = [record for record in pairs.mine if inside(record)]
        tokens = sum(map(inside, mine))
        apart = all(record.forwards_distinct for record in mine)  # otherwise arrivals are not forwards
        forwards = sum(positions.forwards(record, window) for record in mine) if apart else None
        found.append(
            AtPosition(
                start=window.start,
                end=window.end,
                prompts=len(
                    {a.prompt_id for a, m in zip(pairs.ar, pairs.mine, strict=True) if inside(a) and inside(m)}
                ),
                tokens_per_forward=quotient(tokens, forwards),
                speedup=there,
                so_far=whole,
            )
        )
    return found


def _tokens_in(record: RequestRecord, window: positions.Window, shared: bool) -> int:
    return positions.spent(record, window, shared)[1]


def _speedup_in(pairs: Pairs, window: positions.Window) -> Speedup | None:
    """The speedup in a window; None if no request reaches it in both rows."""
    paired = positions.paired(pairs.ar, pairs.mine, pairs.units, window, pairs.shared)
    if not paired.clusters:
        return None
    arms = paired.numerator, paired.denominator
    found = paired_ratio(*arms, seed=BOOTSTRAP_SEED, draws=_POSITION_DRAWS, clusters=paired.clusters)
    return speedup_of(found, None)


#: Resamples per interval of a curve; a row may have a dozen of them.
_POSITION_DRAWS = 2_000


def joint_intervals(rows: Mapping[str, Pairs], measure: Measure) -> Many | None:
    """Joint intervals of rows compared with the same AR; None for fewer than two rows."""
    held = {label: pairs.paired(measure) for label, pairs in rows.items() if pairs.units}
    return many(held, seed=BOOTSTRAP_SEED) if len(held) > 1 else None


def with_joint_interval(speedup: Speedup | None, label: str, found: Many | None) -> Speedup | None:
    """A row's speedup with its joint interval over all rows, and the verdict from both intervals."""
    if speedup is None or found is None or label not in found.labels:
        return speedup
    mine = found.intervals.get(label)
    own = None if speedup.interval is None else Interval(*speedup.interval, LEVEL)
    together = None if mine is None else JointInterval(rows=len(found.intervals), low=mine.low, high=mine.high)
    return speedup.model_copy(update={"among": together, "verdict": found.verdict(label, own)})


def groups(baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool) -> dict[str, Group]:
    """The figures of each group of categories, for tasks with categories, and of all prompts as "overall".

    Includes Spec-Bench's own figures (Xia et al. 2024, ``evaluation/speed.py``): ``specbench_speedup`` is a ratio of
    mean tokens per second, ``specbench_mat`` the mean of tokens per forward over all forwards, the prefill's included.
    """
    grouped: dict[str, dict[Key, RequestRecord]] = defaultdict(dict)
    for key, record in mine.items():
        if record.category:
            grouped[record.category.partition("/")[0]][key] = record
    if len(grouped) > 1:
        grouped.setdefault("overall", dict(mine))
    found = {}
    for name, members in grouped.items():
        records = list(members.values())
        references = {key: baseline[key] for key in members if key in baseline}
        found[name] = Group(
            **counts(records, shared),
            **dict(compare_to_baseline(references, members, shared)),
            specbench_mat=_mean_accepted(records),
            specbench_speedup=_specbench_speedup(references, {key: members[key] for key in references}, shared),
        )
    return found


def _mean_accepted(records: Sequence[RequestRecord]) -> float | None:
    """Mean accepted tokens over forwards, including the prefill; None if an engine does not report single forwards."""
    if not all(record.forwards_distinct for record in records):
        return None
    return mean([record.first_tokens for record in records] + [kept for r in records for kept in r.accepted_lengths])


def _specbench_speedup(
    baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], shared: bool
) -> float | None:
    """Mean over repeats of the ratio of mean speeds.

    A method's tokens are all generated tokens, AR's only those of the answer's text, without the stop token. For
    answers of twenty tokens this favours the method by 5%.
    """
    ratios = []
    for repeat in sorted({repeat for _, repeat, _ in mine}):
        ar, method = ([r for (_, n, _), r in arm.items() if n == repeat] for arm in (baseline, mine))
        speeds = _mean_speed(method, shared), _mean_speed(ar, shared, of_text=True)
        ratios.append(quotient(*speeds))
    known = [each for each in ratios if each is not None]
    return mean(known) if known else None


def _mean_speed(records: Sequence[RequestRecord], shared: bool, of_text: bool = False) -> float | None:
    """Mean over questions of tokens per second, over all turns of a question, prefill included."""
    questions: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        questions[record.prompt_id].append(record)
    speeds = [
        quotient(
            sum(r.text_tokens if of_text else r.output_tokens for r in turns), sum(r.whole_s(shared) for r in turns)
        )
        for turns in questions.values()
    ]
    known = [speed for speed in speeds if speed is not None]
    return mean(known) if known else None


def compare_to_base(
    base: Mapping[Key, RequestRecord],
    mine: Mapping[Key, RequestRecord],
    verdicts: Mapping[str, bool] | None,
    shared: bool,
) -> OverBase | None:
    """Compare with plain decoding of the base model, which has other weights and answers; None without it."""
    if not base:
        return None
    return OverBase(
        speedup=compare_to_baseline(base, mine, shared).speedup, accuracy_difference=gained(base, mine, verdicts)
    )


def speedup_of(found: Ratio, each: PerPrompt | None, prompts: int | None = None) -> Speedup | None:
    """Convert a ratio to its record; None if an arm decoded no token after its first."""
    if math.isnan(found.value):
        return None
    several = (prompts or found.clusters) / found.clusters
    seen = math.expm1(abs(math.log(found.value)))
    needed = prompts_needed(found, seen) if found.interval and seen else None
    return Speedup(
        value=found.value,
        **bounds(found.interval),
        verdict=verdict(found.interval),
        per_prompt=PerPromptFigures(**asdict(each)) if each else None,
        detectable=detectable(found),
        to_tell=PromptsNeeded(difference=seen, prompts=math.ceil(needed * several)) if needed else None,
        blocks=None if prompts is None else found.clusters,
    )


def difference_of(found: Difference) -> AccuracyDifference:
    """Convert a difference in accuracy to its record."""
    return AccuracyDifference(
        value=found.value,
        **bounds(found.interval),
        verdict=difference_verdict(found),
        gained=found.gained,
        lost=found.lost,
        p_value=found.p_value,
    )


def gained(
    baseline: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord], verdicts: Mapping[str, bool] | None
) -> AccuracyDifference | None:
    """Difference in right answers from AR, on the requests that are scored in both rows."""
    pairs = [(mine[key], baseline[key]) for key in sorted(mine.keys() & baseline.keys())]
    scored = [(m, ar) for m, ar in pairs if verdicts and m.request_id in verdicts and ar.request_id in verdicts]
    if not scored or verdicts is None:
        return None
    right = [[verdicts[record.request_id] for record in arm] for arm in zip(*scored, strict=True)]
    prompts = [record.prompt_id for record, _ in scored]
    return difference_of(paired_difference(right[0], right[1], seed=BOOTSTRAP_SEED, clusters=prompts))


def bounds(interval: Interval | None) -> dict[str, Any]:
    """``low`` and ``high`` of an interval; both None without one."""
    return {"low": interval and interval.low, "high": interval and interval.high}
