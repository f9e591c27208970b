"""Summary schema: what ``summary.json`` holds, and what the figures of a method are.

Later figures have defaults here, and what a newer writer of the same schema adds is left alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.results.columns import FIGURE, NO_COLUMN, SPARSE, named_columns
from specbench.results.engine_facts import EngineFacts
from specbench.results.schema import BASELINE, SimulatedAcceptance


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    def written(self) -> dict[str, Any]:
        """JSON-ready: what was set or read, and no defaults, so that an older file is written again as it was."""
        return self.model_dump(mode="json", exclude_unset=True)


class PerPromptFigures(_Part):
    """How single prompts fared; where sequences were stepped together, how their blocks did."""

    median: float
    geometric_mean: float
    prompts: int | None = Field(default=None, description="that have a ratio")
    faster: int | None = Field(default=None, description="of them those faster than the other row")
    p_value: float | None = Field(default=None, description="of the sign test over them, two-sided")


class PromptsNeeded(_Part):
    """How many prompts it takes to tell the difference seen (a share of the slower one's speed) from none."""

    difference: float
    prompts: int | None = None


class JointInterval(_Part):
    """The interval of a row that holds together with those of all rows of its table, see ``stats.many``."""

    rows: int
    low: float
    high: float


class Estimate(_Part):
    """A figure with the ends of its interval; without one both are None."""

    value: float = Field(json_schema_extra=FIGURE)
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its ends; None without."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Speedup(Estimate):
    """A ratio of speeds with its interval; without one there is no verdict on it.

    ``detectable`` is the relative difference that these prompts tell with a chance of 80 %; ``blocks`` counts what was
    timed and resampled where sequences were stepped together.
    """

    verdict: str
    per_prompt: PerPromptFigures | None = None
    detectable: float | None = None
    to_tell: PromptsNeeded | None = None
    among: JointInterval | None = Field(default=None, json_schema_extra=SPARSE)
    blocks: int | None = Field(default=None, json_schema_extra=SPARSE)


class Accuracy(_Part):
    """A share of right answers, with Wilson's interval."""

    value: float = Field(json_schema_extra=FIGURE)
    passed: int
    scored: int
    low: float | None = None
    high: float | None = None


class RepeatCheck(_Part):
    """A method's second row held against its first: the A/A check."""

    of: str
    speedup: Speedup


class AccuracyDifference(Estimate):
    """Right answers less AR's, on the same prompts, with McNemar's p-value."""

    verdict: str
    gained: int
    lost: int
    p_value: float


class OverBase(_Part):
    """A row held against plain decoding of the model that the run's model was made from: other weights and answers."""

    speedup: Speedup | None = None
    accuracy_difference: AccuracyDifference | None = None


class Rate(_Part):
    """How many prompts have a grade, with Wilson's interval of their share."""

    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float | None = Field(default=None, ge=0, le=1)
    high: float | None = Field(default=None, ge=0, le=1)


class NoiseFloor(_Part):
    """Where ties end: see :class:`specbench.runner.grades.lossless.Noise`."""

    floor: float
    largest: float
    positions: int
    flips: int
    rows: int
    device: str
    dtype: str
    attention: str


class Divergence(_Part):
    """Where an answer left AR's: token index, AR's top-2 gap there (None: one token was possible), and the grade."""

    prompt: str
    at: int
    gap: float | None
    grade: Literal["numeric-tie", "lossy"]


class Lossless(_Part):
    """The worst grade of a method's answers, how many have which, and the same over prompts."""

    verdict: Literal["exact", "numeric-tie", "lossy"] = Field(json_schema_extra=FIGURE)
    exact: int = 0
    numeric_tie: int = 0
    lossy: int = 0
    noise_floor: float | None = None
    noise: NoiseFloor | None = Field(default=None, json_schema_extra=NO_COLUMN)
    divergences: list[Divergence] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    rates: dict[str, Rate] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)


class AtPosition(_Part):
    """A method's speed in a window of the answer (tokens after the first), see :mod:`specbench.analysis.positions`.

    ``so_far`` is of the answers from their beginning to ``end``.
    """

    start: int
    end: int
    prompts: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None
    so_far: Speedup | None = None


class AtTurn(_Part):
    """A method's speed on the n-th problems of their sessions; ``prompt_tokens`` is the median of the context before
    them.
    """

    turn: int
    prompt_tokens: float
    tokens_per_forward: float | None = None
    decode_tok_s: float | None = None
    speedup: Speedup | None = None


class SessionFigures(_Part):
    """Throughput over conversations of chained problems, see :mod:`specbench.analysis.sessions`.

    ``average_tok_s`` includes prefills; ``peak_tok_s`` is the fastest window of a session, median of sessions, decoding
    alone.
    """

    sessions: int
    problems: int
    average_tok_s: float | None = None
    peak_tok_s: float | None = None
    window_tokens: int
    windows_tok_s: list[float] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    turns: list[AtTurn] = Field(default_factory=list, json_schema_extra=NO_COLUMN)


class Memory(_Part):
    """What a method decodes in, in bytes: the target's weights, its KV cache for all slots, and what it drafts with."""

    weight_bytes: int
    cache_bytes: int
    draft_bytes: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weight_bytes + self.cache_bytes + self.draft_bytes


class Gpu(_Part):
    """What the GPU did over a method's requests: medians of clock and power, the highest temperature."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_per_token_j: float | None = Field(default=None, description="over all output tokens, prefills included")
    throttled: int = Field(default=0, description="requests on a GPU that was held down")
    throttle_reasons: list[str] = Field(default_factory=list, json_schema_extra=NO_COLUMN)


class Counts(_Part):
    """What requests say by themselves, of a method or of one group of categories."""

    prompts: int
    requests: int = 0
    tokens: int = 0
    tokens_per_forward: float | None = Field(description="output tokens after the first over target forwards")
    decode_tok_s: float | None = Field(description="output tokens after the first over decode seconds")
    ttft_median_s: float | None = None
    latency_median_s: float | None = None
    truncated: int = Field(default=0, description="requests that ended at the token budget")


class OverAr(_Part):
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


class _Named(_Part):
    method: str
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)
    lossless_claimed: bool | None = None
    simulated: SimulatedAcceptance | None = Field(default=None, json_schema_extra=SPARSE)


class WithoutLoops(_Part):
    """A row's speed over another one on the prompts on which no answer of either ends in a loop."""

    prompts: int
    dropped: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None


class TextFigures(_Part):
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


class BranchFigures(_Part):
    """How well the scores of a row's drafts match the target: see :mod:`specbench.results.branches`."""

    branches: int = Field(description="best branches of trees that the target was asked about, eight a request at most")
    tokens: float = Field(description="of a branch, mean")
    gap_median: float = Field(description="nats by which a branch's score promised more than the target says")
    gap_mean: float
    kept_share: float = Field(description="branches whose gap is under 5 nats")
    broken_share: float = Field(description="branches whose gap is 80 nats or more")


class OverOwnAr(_Part):
    """A row of another engine that speculates, held against the same engine's plain decoding."""

    of: str
    speedup: Speedup | None = None
    lossless: Lossless | None = None


class OtherEngine(_Part):
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


class BandwidthFigures(_Part):
    """What memory gave while a run on a CPU was measured; ``bytes_per_s`` is the median reading."""

    bytes_per_s: float | None = None
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    readings: int = 0
    threads: list[int] = Field(default_factory=list)
    refused: str = ""


class Fastest(_Part):
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


class Threshold(_Part):
    """A figure that may not be above its limit."""

    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it is above."""
        return self.value > self.limit


class Disturbed(_Part):
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


class SweepFindings(_Part):
    """What the search of a sweep found: its fastest cell, those as fast within noise, and why others stopped."""

    stopped: dict[str, str] = Field(default_factory=dict)
    best: str | None = None
    within_noise: list[str] = Field(default_factory=list)


class RunSummary(_Part):
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
