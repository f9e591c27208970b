"""Summary schema: what ``summary.json`` holds, and what the figures of a method are.

Later figures have defaults here, and what a newer writer of the same schema adds is left alone.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from specbench.results.columns import NO_COLUMN, SPARSE, named_columns
from specbench.results.engine_facts import EngineFacts
from specbench.results.figures_schema import (
    Accuracy,
    AccuracyDifference,
    AtPosition,
    Gpu,
    Lossless,
    Memory,
    OverBase,
    Part,
    RepeatCheck,
    SessionFigures,
    Speedup,
)
from specbench.results.schema import BASELINE, SimulatedAcceptance


class Counts(Part):
    """What requests say by themselves, of a method or of one group of categories."""

    prompts: int
    requests: int = 0
    tokens: int = 0
    tokens_per_forward: float | None = Field(description="output tokens after the first over target forwards")
    decode_tok_s: float | None = Field(description="output tokens after the first over decode seconds")
    ttft_median_s: float | None = None
    latency_median_s: float | None = None
    truncated: int = Field(default=0, description="requests that ended at the token budget")


class OverAr(Part):
    """Requests held against AR's on the same prompts."""

    speedup: Speedup | None = None
    e2e_speedup: Speedup | None = Field(default=None, description="with the prefill")
    ttft_speedup: Speedup | None = Field(default=None, description="of the first token alone")
    step_ratio: float | None = Field(default=None, description="AR's seconds a forward over the method's")
    length_changed: int = Field(default=0, description="answers of another length than AR's")
    prompt_changed: int = Field(default=0, description="later turns that follow other answers than AR's")


class Group(OverAr, Counts):
    """The figures of one group of categories, ours and Spec-Bench's."""

    specbench_mat: float | None = None
    specbench_speedup: float | None = None


class MethodFigures(Counts):
    """What a method's records say by themselves, without its AR twin."""

    requests: int
    tokens: int
    target_forwards: int
    draft_forwards: int = 0
    tokens_per_forward_with_prefill: float | None = Field(description="the same, the prefill and its token included")
    e2e_tok_s: float | None = Field(default=None, description="output tokens over all seconds, prefill included")
    step_s: float | None = None
    rows_per_step: float | None = None
    tpot_median_s: float | None = Field(
        default=None, description="seconds per output token after the first: median over requests, see RequestRecord"
    )
    peak_memory_bytes: int | None = Field(default=None, description="the largest of its requests'; None on a CPU")
    overshoot_tokens: int = 0
    stop_tail_tokens: int = 0
    phases: dict[str, float] | None = Field(
        default=None,
        description="with --trace: median seconds of a step by phase, and of all but the forward (host_s)",
        json_schema_extra=named_columns("phase"),
    )
    measures: dict[str, float] = Field(
        default_factory=dict,
        description="the method's own figures, each the mean over the requests that have it",
        json_schema_extra=named_columns("measure"),
    )
    gpu: Gpu | None = Field(default=None, json_schema_extra=SPARSE)


class _Named(Part):
    method: str
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)
    lossless_claimed: bool | None = None
    simulated: SimulatedAcceptance | None = Field(default=None, json_schema_extra=SPARSE)


class WithoutLoops(Part):
    """A row's speed over another one on the prompts on which no answer of either ends in a loop."""

    prompts: int
    dropped: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None


class TextFigures(Part):
    """What a row's texts are like, whatever it takes to write them: see :mod:`specbench.analysis.text_quality`."""

    looping: int = Field(description="answers that end in a closing loop")
    loop_share: float | None = Field(default=None, description="tokens of closing loops over output tokens")
    distinct_1: float | None = Field(default=None, description="different tokens over all, mean over answers")
    distinct_2: float | None = Field(default=None, description="the same of pairs of tokens in a row")
    distinct_4: float | None = Field(default=None, description="the same of four tokens in a row")
    log_likelihood_per_token: float | None = Field(
        default=None,
        description="in nats, under the run's model, or the one that it was made from where the run has that too; at "
        "temperature 1 however tokens were chosen. None in sweeps and in runs from before it was asked",
    )
    agreement: float | None = Field(
        default=None, description="positions with the token that the base, or else AR, has there, running free"
    )
    common_prefix_tokens: float | None = Field(default=None, description="before the first other token, mean")
    without_loops: WithoutLoops | None = Field(default=None, json_schema_extra=SPARSE)
    without_loops_over_base: WithoutLoops | None = Field(default=None, json_schema_extra=SPARSE)


class BranchFigures(Part):
    """How well the scores of a row's drafts match the target: see :mod:`specbench.results.branches`."""

    branches: int = Field(description="best branches of trees that the target was asked about, eight a request at most")
    tokens: float = Field(description="of a branch, mean")
    gap_median: float = Field(description="nats by which a branch's score promised more than the target says")
    gap_mean: float
    kept_share: float = Field(description="branches whose gap is under 5 nats")
    broken_share: float = Field(description="branches whose gap is 80 nats or more")


class OverOwnAr(Part):
    """A row of another engine that speculates, held against the same engine's plain decoding."""

    of: str
    speedup: Speedup | None = None
    lossless: Lossless | None = None


class OtherEngine(Part):
    """What a row of another engine has in addition to a method's figures.

    A row with ``failed`` is never called the fastest; ``over_own_ar`` is None where the run has no plain row of that
    precision.
    """

    facts: EngineFacts | None = None
    failed: str = ""
    over_own_ar: OverOwnAr | None = Field(default=None, json_schema_extra=SPARSE)


class MethodSummary(OverAr, MethodFigures, _Named):
    """One method of a run: a row of ``summary.json``. Figures that do not exist are None."""

    again: RepeatCheck | None = Field(default=None, json_schema_extra=SPARSE)
    drafted_as: str | None = Field(
        default=None,
        description="an earlier row whose forwards had the same rows and kept the same tokens in every request",
        json_schema_extra=SPARSE,
    )
    over_base: OverBase | None = Field(default=None, json_schema_extra=SPARSE)
    accuracy: Accuracy | None = None
    accuracy_difference: AccuracyDifference | None = None
    metrics: dict[str, Accuracy | None] = Field(default_factory=dict, json_schema_extra=named_columns("accuracy"))
    groups: dict[str, Group] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)
    lossless: Lossless | None = None
    positions: list[AtPosition] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    session: SessionFigures | None = Field(default=None, json_schema_extra=SPARSE)
    text: TextFigures | None = None
    branches: BranchFigures | None = Field(default=None, json_schema_extra=SPARSE)
    other: OtherEngine | None = Field(
        default=None, description="of another engine's row; None of our own", json_schema_extra=SPARSE
    )
    fault: str | None = Field(
        default=None,
        description="why a row of our own engine has not answered all that it was asked: its method failed",
        json_schema_extra=SPARSE,
    )
    memory: Memory | None = Field(default=None, json_schema_extra=SPARSE)
    bandwidth_share: float | None = Field(
        default=None,
        description="on a CPU: bytes that its target forwards had to read, weights and KV cache, over its decode "
        "seconds, over the median bandwidth that a probe read during the run, as a fraction of 1. Drafting and all "
        "other work are time in which nothing of this is read, so a method that drafts has a lower share; of a mixture "
        "model the experts of one row count, though a tree reads more. None where memory was not read, and at "
        "concurrency above 1",
    )

    @property
    def failed(self) -> str:
        """Why a row is not whole; empty where it is. Such a row is never called the fastest."""
        return self.other.failed if self.other else self.fault or ""

    @property
    def baseline(self) -> bool:
        """Whether it is the AR twin of the others."""
        return self.method == BASELINE


class BandwidthFigures(Part):
    """What memory gave while a run on a CPU was measured; ``bytes_per_s`` is the median reading."""

    bytes_per_s: float | None = None
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    readings: int = 0
    threads: list[int] = Field(default_factory=list)
    refused: str = ""


class Fastest(Part):
    """The row with the highest speedup, and what speaks for it.

    Attributes:
        low, high: an interval of its speedup that allows for its having been chosen; None where there is none.
        as_good: the rows that the prompts do not tell apart from the best, itself first.
        told_apart: whether there were enough prompts to rule one out.
    """

    method: str
    among: int
    low: float | None = None
    high: float | None = None
    verdict: str
    as_good: list[str]
    told_apart: bool


class Threshold(Part):
    """A figure that may not be above its limit."""

    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it is above."""
        return self.value > self.limit


class Disturbed(Part):
    """Whether a run was left alone by its machine: figures with their limits, see :mod:`specbench.analysis.noise`.

    ``reasons`` has a short sentence for each figure that passes its limit.
    """

    reasons: list[str] = Field(default_factory=list)
    watched_s: float | None = None
    requests: int | None = None
    others_share: Threshold | None = Field(default=None, description="of the cores' time, taken by other processes")
    stolen_share: Threshold | None = Field(default=None, description="the same, taken by a hypervisor")
    load_share: Threshold | None = Field(default=None, description="load beyond the run's own, over the cores")
    clock_fall: Threshold | None = Field(default=None, description="lower quartile of the cores' clock below the upper")
    slowed: Threshold | None = Field(default=None, description="times that heat slowed a core down")
    gpu_clock_fall: Threshold | None = Field(default=None, description="as clock_fall, over requests")
    throttled_share: Threshold | None = Field(default=None, description="of the requests, those on a throttled GPU")
    bandwidth_spread: Threshold | None = Field(
        default=None, description="middle half of the readings over their median"
    )
    step_spread: Threshold | None = Field(default=None, description="middle half of AR's steps over their median")
    step_drift: Threshold | None = Field(default=None, description="slowest third in a row over the fastest, less 1")


class SweepFindings(Part):
    """What the search of a sweep found: its fastest cell, those as fast within noise, and why others stopped."""

    stopped: dict[str, str] = Field(default_factory=dict)
    best: str | None = None
    within_noise: list[str] = Field(default_factory=list)


class RunSummary(Part):
    """The content of ``summary.json``; None stands for what an older version did not write."""

    complete: bool
    interval: str | None = None
    bootstrap_seed: int | None = None
    rows: list[MethodSummary] = Field(min_length=1)
    fastest: Fastest | None = None
    engine: dict[str, Any] = Field(default_factory=dict)
    bandwidth: BandwidthFigures | None = None
    disturbed: Disturbed | None = None
    sweep: SweepFindings | None = None

    @property
    def unsure(self) -> bool:
        """Whether the run was disturbed, so that its verdicts are marked."""
        return self.disturbed is not None and bool(self.disturbed.reasons)
