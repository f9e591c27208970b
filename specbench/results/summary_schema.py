"""Schema of ``summary.json`` and of the figures of each method.

Figures added later have defaults, and unknown fields from a newer writer of the same schema are ignored.
"""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from specbench.results.columns import NO_COLUMN, SPARSE, named_columns
from specbench.results.engine_facts import EngineFacts
from specbench.results.figures_schema import (
    Acceptance,
    Accuracy,
    AccuracyDifference,
    AtContext,
    AtPosition,
    AtRate,
    Gpu,
    Lossless,
    Memory,
    OverBase,
    Part,
    Percentiles,
    RepeatCheck,
    SessionFigures,
    Speedup,
)
from specbench.results.schema import BASELINE, SimulatedAcceptance


class Counts(Part):
    """Figures of the requests of a method, or of one group of categories, without a comparison."""

    prompts: int
    requests: int = 0
    tokens: int = 0
    tokens_per_forward: float | None = Field(description="output tokens after the first, divided by target forwards")
    decode_tok_s: float | None = Field(description="output tokens after the first, divided by decode seconds")
    ttft_median_s: float | None = None
    latency_median_s: float | None = None
    truncated: int = Field(default=0, description="requests that ended at the token budget")


class OverAr(Part):
    """Comparison with AR on the same prompts."""

    speedup: Speedup | None = None
    e2e_speedup: Speedup | None = Field(default=None, description="speedup over all seconds, prefill included")
    ttft_speedup: Speedup | None = Field(default=None, description="speedup of the time to the first token")
    step_ratio: float | None = Field(default=None, description="AR's seconds per forward divided by the method's")
    length_changed: int = Field(default=0, description="number of answers whose length differs from AR's")
    prompt_changed: int = Field(default=0, description="number of later turns whose earlier answers differ from AR's")


class Group(OverAr, Counts):
    """Figures of one group of categories: ours, and ``specbench_*`` as the Spec-Bench benchmark defines them."""

    specbench_mat: float | None = None
    specbench_speedup: float | None = None


class MethodFigures(Counts):
    """Figures of a method's records alone, without a comparison with AR."""

    requests: int
    tokens: int
    target_forwards: int
    draft_forwards: int = 0
    tokens_per_forward_with_prefill: float | None = Field(
        description="output tokens divided by target forwards, with the prefill and its token"
    )
    e2e_tok_s: float | None = Field(default=None, description="output tokens per second, prefill included")
    step_s: float | None = None
    rows_per_step: float | None = None
    acceptance: Acceptance | None = Field(
        default=None,
        description="None without drafts, in older summaries, and if another engine does not count its drafts",
        json_schema_extra=SPARSE,
    )
    tpot_median_s: float | None = Field(
        default=None, description="seconds per output token after the first: median over requests"
    )
    sequences: float | None = Field(
        default=None,
        description="at concurrency above 1: mean number of sequences in the slots while requests ran",
        json_schema_extra=SPARSE,
    )
    peak_memory_bytes: int | None = Field(
        default=None, description="largest GPU memory peak of the method's requests, in bytes; None on a CPU"
    )
    prefix_share: float | None = Field(
        default=None,
        description="with --keep-prefix: prompt tokens whose KV was kept from the turn before, divided by all prompt "
        "tokens",
        json_schema_extra=SPARSE,
    )
    overshoot_tokens: int = 0
    stop_tail_tokens: int = 0
    phases: dict[str, float] | None = Field(
        default=None,
        description="with --trace: median seconds of a step by phase, and of all but the forward (host_s)",
        json_schema_extra=named_columns("phase"),
    )
    measures: dict[str, float] = Field(
        default_factory=dict,
        description="figures that the method defines itself, each the mean over the requests that have it",
        json_schema_extra=named_columns("measure"),
    )
    gpu: Gpu | None = Field(default=None, json_schema_extra=SPARSE)


class _Named(Part):
    method: str
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)
    lossless_claimed: bool | None = None
    simulated: SimulatedAcceptance | None = Field(default=None, json_schema_extra=SPARSE)


class WithoutLoops(Part):
    """Speedup on the prompts whose answers do not end in repetitive text, in either row."""

    prompts: int
    dropped: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None


class TextFigures(Part):
    """Quality of a row's texts: see :mod:`specbench.analysis.text_quality`."""

    looping: int = Field(description="number of answers that end in repetitive text")
    loop_share: float | None = Field(default=None, description="share of output tokens in such repetitive endings")
    distinct_1: float | None = Field(
        default=None, description="distinct tokens divided by all tokens of an answer, mean over answers"
    )
    distinct_2: float | None = Field(default=None, description="distinct-2: the same for pairs of consecutive tokens")
    distinct_4: float | None = Field(default=None, description="distinct-4: the same for four consecutive tokens")
    log_likelihood_per_token: float | None = Field(
        default=None,
        description="mean log-likelihood per token in nats, at temperature 1 however tokens were chosen, under the "
        "base model if the run has one, else under the run's model. None in sweeps and older runs",
    )
    agreement: float | None = Field(
        default=None,
        description="share of positions whose token equals that of the base model's AR answer (or else AR's), each "
        "decoded freely",
    )
    common_prefix_tokens: float | None = Field(
        default=None, description="mean number of tokens before the first one that differs"
    )
    without_loops: WithoutLoops | None = Field(default=None, json_schema_extra=SPARSE)
    without_loops_over_base: WithoutLoops | None = Field(default=None, json_schema_extra=SPARSE)


class BranchFigures(Part):
    """How well a drafter's scores match the target's probabilities: see :mod:`specbench.results.branches`."""

    branches: int = Field(description="number of best branches that the target scored, at most eight per request")
    tokens: float = Field(description="mean number of tokens of a branch")
    gap_median: float = Field(description="median of the drafter's log-probability minus the target's, in nats")
    gap_mean: float
    kept_share: float = Field(description="share of branches whose gap is below 5 nats")
    broken_share: float = Field(description="share of branches whose gap is 80 nats or more")


class OverOwnAr(Part):
    """A speculative row of another engine compared with ``of``, the plain decoding of the same engine."""

    of: str
    speedup: Speedup | None = None
    lossless: Lossless | None = None


class OtherEngine(Part):
    """Additional fields of a row of another engine.

    ``failed`` is why the row is incomplete; such a row is never called the fastest. ``over_own_ar`` is None if the run
    has no plain row of the engine at this precision.
    """

    facts: EngineFacts | None = None
    failed: str = ""
    over_own_ar: OverOwnAr | None = Field(default=None, json_schema_extra=SPARSE)


class WaitingTimes(Part):
    """Percentiles of what a user waits for; None without a value."""

    ttft_s: Percentiles | None = Field(default=None, description="seconds to the first token", json_schema_extra=SPARSE)
    tpot_s: Percentiles | None = Field(
        default=None,
        description="seconds per output token after the first, as a user sees them: one value per request",
        json_schema_extra=SPARSE,
    )
    itl_s: Percentiles | None = Field(
        default=None,
        description="seconds between two arrivals of tokens: one value per target forward, whose tokens arrive at once",
        json_schema_extra=SPARSE,
    )
    latency_s: Percentiles | None = Field(
        default=None, description="seconds to the last token", json_schema_extra=SPARSE
    )


class MethodSummary(OverAr, WaitingTimes, MethodFigures, _Named):
    """One method of a run: a row of ``summary.json``. Missing figures are None."""

    again: RepeatCheck | None = Field(default=None, json_schema_extra=SPARSE)
    drafted_as: str | None = Field(
        default=None,
        description="label of an earlier row whose forwards had the same number of rows and kept the same tokens in "
        "every request",
        json_schema_extra=SPARSE,
    )
    over_base: OverBase | None = Field(default=None, json_schema_extra=SPARSE)
    accuracy: Accuracy | None = None
    accuracy_difference: AccuracyDifference | None = None
    perplexity: float | None = Field(
        default=None,
        description="of the texts that really follow the prompts, under the row's model, in tasks that have them",
        json_schema_extra=SPARSE,
    )
    metrics: dict[str, Accuracy | None] = Field(default_factory=dict, json_schema_extra=named_columns("accuracy"))
    groups: dict[str, Group] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)
    lossless: Lossless | None = None
    positions: list[AtPosition] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    contexts: list[AtContext] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    rates: list[AtRate] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    session: SessionFigures | None = Field(default=None, json_schema_extra=SPARSE)
    text: TextFigures | None = None
    branches: BranchFigures | None = Field(default=None, json_schema_extra=SPARSE)
    other: OtherEngine | None = Field(
        default=None, description="fields of another engine's row; None for our engine", json_schema_extra=SPARSE
    )
    fault: str | None = Field(
        default=None,
        description="error of the method, if a row of our engine is incomplete because its method failed",
        json_schema_extra=SPARSE,
    )
    memory: Memory | None = Field(default=None, json_schema_extra=SPARSE)
    bandwidth_share: float | None = Field(
        default=None,
        description="on a CPU: bytes that the target forwards had to read (weights and KV cache) per decode second, "
        "divided by the median bandwidth that a probe measured during the run, from 0 to 1. Drafting takes time in "
        "which these bytes are not read, so a method that drafts has a lower share. In a mixture of experts a "
        "forward of n rows counts the experts that n consecutive tokens of a prompt are routed to. None if bandwidth "
        "was not measured, and at concurrency above 1",
    )

    @property
    def failed(self) -> str:
        """Why a row is incomplete, else empty. An incomplete row is never called the fastest."""
        return self.other.failed if self.other else self.fault or ""

    @property
    def baseline(self) -> bool:
        """Whether this is the AR row, the baseline of the other rows."""
        return self.method == BASELINE


class BandwidthFigures(Part):
    """Memory bandwidth measured during a run on a CPU; ``bytes_per_s`` is the median reading."""

    bytes_per_s: float | None = None
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    readings: int = 0
    threads: list[int] = Field(default_factory=list)
    refused: str = ""


class Fastest(Part):
    """The row with the highest speedup, and the evidence for it.

    Attributes:
        low, high: interval of its speedup that accounts for choosing the best of ``among`` rows; None if there is none.
        as_good: rows that are as fast as the best within noise, the best itself first.
        conclusive: whether there were enough prompts to rule out any row.
    """

    method: str
    among: int
    low: float | None = None
    high: float | None = None
    verdict: str
    as_good: list[str]
    conclusive: bool = Field(validation_alias=AliasChoices("conclusive", "told_apart"))  # its older name


class Threshold(Part):
    """A figure with its upper limit."""

    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the value exceeds the limit."""
        return self.value > self.limit


class Disturbed(Part):
    """Signs that the machine disturbed a run: figures with their limits, see :mod:`specbench.analysis.noise`.

    ``reasons`` has a short sentence for each figure that exceeds its limit.
    """

    reasons: list[str] = Field(default_factory=list)
    watched_s: float | None = None
    requests: int | None = None
    others_share: Threshold | None = Field(
        default=None, description="share of the cores' time that other processes used"
    )
    stolen_share: Threshold | None = Field(default=None, description="share of the cores' time that a hypervisor took")
    load_share: Threshold | None = Field(
        default=None, description="load average beyond the run's own, divided by the cores"
    )
    clock_fall: Threshold | None = Field(
        default=None, description="how far the lower quartile of the cores' clock is below the upper one"
    )
    slowed: Threshold | None = Field(default=None, description="number of times that heat slowed a core down")
    gpu_clock_fall: Threshold | None = Field(default=None, description="clock_fall of the GPU over requests")
    throttled_share: Threshold | None = Field(default=None, description="share of requests on a throttled GPU")
    bandwidth_spread: Threshold | None = Field(
        default=None, description="interquartile range of the bandwidth readings divided by their median"
    )
    step_spread: Threshold | None = Field(
        default=None, description="interquartile range of AR's step times divided by their median"
    )
    step_drift: Threshold | None = Field(
        default=None,
        description="AR's step time in the slowest consecutive third of the run divided by the fastest third, minus 1",
    )


class SweepFindings(Part):
    """Result of a sweep: the fastest configuration, those as fast within noise, and why others were stopped."""

    stopped: dict[str, str] = Field(default_factory=dict)
    best: str | None = None
    within_noise: list[str] = Field(default_factory=list)


class RunSummary(Part):
    """Content of ``summary.json``; None for values that an older version did not write."""

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
        """Whether the run was disturbed, so that its verdicts begin with "unsure"."""
        return self.disturbed is not None and bool(self.disturbed.reasons)
