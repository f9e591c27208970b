"""Pool runs of one configuration on several tasks, over all of their prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.analysis.speedup import BOOTSTRAP_SEED, speedup_of, with_joint_interval
from specbench.analysis.stats.multiple import Many, Paired, many
from specbench.analysis.stats.ratio import paired_ratio, per_prompt
from specbench.results import BASE, BASELINE, RequestRecord, RunConfig, Speedup


class Cost(NamedTuple):
    """Seconds, tokens and forwards of a method for one prompt, summed over turns and repeats, at concurrency 1."""

    decode_s: float = 0.0
    decoded: int = 0  # tokens after the first
    forwards: int = 0
    latency_s: float = 0.0
    tokens: int = 0

    def with_(self, record: RequestRecord) -> Cost:
        """The sum with another request."""
        return Cost(
            self.decode_s + record.decode_s,
            self.decoded + record.decoded_tokens,
            self.forwards + record.target_forwards,
            self.latency_s + record.latency_s,
            self.tokens + record.output_tokens,
        )


#: method label -> prompt -> cost, for one run.
Costs = Mapping[str, Mapping[str, Cost]]


@dataclass(frozen=True)
class PooledRow:
    """A method over all tasks; see :class:`specbench.results.summary_schema.MethodSummary` for the figures."""

    method: str
    prompts: int
    tokens_per_forward: float | None
    decode_tok_s: float | None
    speedup: Speedup | None
    e2e_speedup: Speedup | None


def poolable(one: RunConfig, other: RunConfig) -> bool:
    """Whether two runs differ only in their tasks: model, methods, sampling, budget and machine are the same.

    The commit may differ, because long measurements take several days.
    """
    if one.task.name == other.task.name or one.concurrency > 1 or one.load or one.simulated or other.simulated:
        return False
    mine, its = (config.model_dump(exclude={"task"}) for config in (one, other))
    for found in (mine, its):
        found["identity"] = {name: value for name, value in found["identity"].items() if not name.startswith("git_")}
    return bool(mine == its)


def pooled(runs: Sequence[Costs]) -> list[PooledRow]:
    """Pool the rows of several runs, each with AR."""
    labels = [label for label in runs[0] if label != BASE]
    decode = {label: _paired(runs, label, 0, 1) for label in labels}
    whole = {label: _paired(runs, label, 3, 4) for label in labels}
    together = [_together(found) for found in (decode, whole)]
    rows = []
    for label in labels:
        every = [cost for run in runs for cost in run[label].values()]
        seconds, decoded, forwards = (sum(cost[at] for cost in every) for at in range(3))
        speedups = [
            None if label == BASELINE else with_joint_interval(_speedup(found[label]), label, joint)
            for found, joint in zip((decode, whole), together, strict=True)
        ]
        rows.append(
            PooledRow(
                label,
                len(every),
                decoded / forwards if forwards else None,
                decoded / seconds if seconds else None,
                speedups[0],
                speedups[1],
            )
        )
    return rows


def _paired(runs: Sequence[Costs], label: str, seconds: int, tokens: int) -> Paired:
    """Seconds and tokens of AR and of a method, on the prompts that both have."""
    pairs = [
        (f"{number}/{prompt}", run[BASELINE][prompt], cost)
        for number, run in enumerate(runs)
        for prompt, cost in run[label].items()
        if prompt in run[BASELINE]
    ]
    ar, mine = [one for _, one, _ in pairs], [one for *_, one in pairs]
    arms = [([cost[seconds] for cost in arm], [float(cost[tokens]) for cost in arm]) for arm in (ar, mine)]
    return Paired(arms[0], arms[1], [unit for unit, *_ in pairs])


def _together(found: Mapping[str, Paired]) -> Many | None:
    rows = {label: paired for label, paired in found.items() if label != BASELINE and paired.clusters}
    return many(rows, seed=BOOTSTRAP_SEED) if len(rows) > 1 else None


def _speedup(paired: Paired) -> Speedup | None:
    if not paired.clusters:
        return None
    arms = paired.numerator, paired.denominator
    found = paired_ratio(*arms, seed=BOOTSTRAP_SEED, clusters=paired.clusters)
    return None if math.isnan(found.value) else speedup_of(found, per_prompt(*arms, paired.clusters))
