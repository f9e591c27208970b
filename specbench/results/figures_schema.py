"""Figures with their intervals, and groups of figures: the parts of a row of ``summary.json``.

Figures added later have defaults, and unknown fields from a newer writer of the same schema are ignored.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.results.columns import FIGURE, NO_COLUMN, SPARSE, named_columns


class Part(BaseModel):
    """Base class of everything in a summary."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    def written(self) -> dict[str, Any]:
        """Return JSON-ready values that were set or read, without defaults: an older file is written back unchanged."""
        return self.model_dump(mode="json", exclude_unset=True)


class PerPromptFigures(Part):
    """Speedups of single prompts; of blocks of prompts if sequences were stepped together."""

    median: float
    geometric_mean: float
    prompts: int | None = Field(default=None, description="number of prompts that have a ratio")
    faster: int | None = Field(
        default=None, description="number of these prompts on which the row was faster than the baseline"
    )
    p_value: float | None = Field(default=None, description="two-sided p-value of the sign test over these prompts")


class PromptsNeeded(Part):
    """Number of prompts needed to tell the measured difference (a share of the slower row's speed) from zero."""

    difference: float
    prompts: int | None = None


class JointInterval(Part):
    """Interval of a row that holds simultaneously with those of all ``rows`` of its table."""

    rows: int
    low: float
    high: float


class Estimate(Part):
    """A figure with the ends of its interval; both are None if there is no interval."""

    value: float = Field(json_schema_extra=FIGURE)
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval as (low, high); None if there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Speedup(Estimate):
    """A ratio of speeds with its interval; without an interval there is no verdict.

    ``detectable`` is the relative difference that this number of prompts detects with a probability of 80 %;
    ``blocks`` is the number of blocks that were timed and resampled if sequences were stepped together.
    """

    verdict: str
    per_prompt: PerPromptFigures | None = None
    detectable: float | None = None
    to_tell: PromptsNeeded | None = None
    among: JointInterval | None = Field(default=None, json_schema_extra=SPARSE)
    blocks: int | None = Field(default=None, json_schema_extra=SPARSE)


class Acceptance(Part):
    """How the target forwards of a row that verified a draft accepted it, over all its requests.

    In a tree, ``draft_tokens`` counts its nodes and a position is a depth. What was accepted after a stop or beyond the
    budget counts, as in vLLM: the target accepted it.
    """

    length: Estimate = Field(
        description="accepted length: accepted draft tokens per draft plus 1 for the bonus token; vLLM's mean "
        "acceptance length. Its interval is a bootstrap over prompts"
    )
    length_without_bonus: float
    rate: float | None = Field(
        default=None, description="draft acceptance rate: accepted draft tokens divided by draft tokens"
    )
    drafts: int = Field(description="target forwards after the prefill that verified a draft")
    draft_tokens: int | None = None
    accepted_tokens: int = Field(description="accepted draft tokens, without bonus tokens")
    positions: dict[int, float] = Field(
        default_factory=dict,
        description="share of the drafts whose token at this position was accepted, from 1 to the last one accepted",
        json_schema_extra=named_columns("acceptance_at"),
    )
    histogram: dict[int, int] = Field(
        default_factory=dict,
        description="number of drafts by accepted draft tokens, from 0",
        json_schema_extra=named_columns("acceptance_histogram"),
    )


class Accuracy(Part):
    """Share of correct answers, with Wilson's interval."""

    value: float = Field(json_schema_extra=FIGURE)
    passed: int
    scored: int
    low: float | None = None
    high: float | None = None


class RepeatCheck(Part):
    """The second row of a method compared with its first row, ``of``: the A/A check."""

    of: str
    speedup: Speedup


class AccuracyDifference(Estimate):
    """Share of correct answers minus AR's on the same prompts, with McNemar's p-value."""

    verdict: str
    gained: int
    lost: int
    p_value: float


class OverBase(Part):
    """A row compared with AR of the base model (``ar@base``), which has other weights and gives other answers."""

    speedup: Speedup | None = None
    accuracy_difference: AccuracyDifference | None = None


class Rate(Part):
    """Number of prompts with a grade, out of ``of``, with Wilson's interval of the share."""

    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float | None = Field(default=None, ge=0, le=1)
    high: float | None = Field(default=None, ge=0, le=1)


class NoiseFloor(Part):
    """Largest gap that counts as a numeric tie: see :class:`specbench.runner.grades.lossless.Noise`."""

    floor: float
    largest: float
    positions: int
    flips: int
    rows: int
    device: str
    dtype: str
    attention: str


class Divergence(Part):
    """First difference from AR's answer: token index, gap of AR's two best tokens there, and grade.

    ``gap`` is None if only one token was possible.
    """

    prompt: str
    at: int
    gap: float | None
    grade: Literal["numeric-tie", "lossy"]


class Lossless(Part):
    """The worst grade of a method's answers, the number of answers with each grade, and ``rates`` over prompts."""

    verdict: Literal["exact", "numeric-tie", "lossy"] = Field(json_schema_extra=FIGURE)
    exact: int = 0
    numeric_tie: int = 0
    lossy: int = 0
    noise_floor: float | None = None
    noise: NoiseFloor | None = Field(default=None, json_schema_extra=NO_COLUMN)
    divergences: list[Divergence] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    rates: dict[str, Rate] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)


class AtPosition(Part):
    """Speed of a method in a window of the answer (tokens after the first), see :mod:`specbench.analysis.positions`.

    ``so_far`` is the speedup from the beginning of the answers to ``end``.
    """

    start: int
    end: int
    prompts: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None
    so_far: Speedup | None = None


class AtContext(Part):
    """Figures of a method on the prompts of at most ``end`` tokens that are longer than half of it.

    ``prompt_tokens`` is their median length. ``draft_s`` and ``verify_s`` are the median seconds of a step for drafts
    and for everything else; only with ``--trace``.
    """

    end: int
    prompts: int
    prompt_tokens: float
    tokens_per_forward: float | None = None
    decode_tok_s: float | None = None
    ttft_median_s: float | None = None
    step_s: float | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    speedup: Speedup | None = None


class AtTurn(Part):
    """Speed of a method on the n-th problem of each session; ``prompt_tokens`` is the median length of the context
    before it.
    """

    turn: int
    prompt_tokens: float
    tokens_per_forward: float | None = None
    decode_tok_s: float | None = None
    speedup: Speedup | None = None


class SessionFigures(Part):
    """Throughput over conversations of chained problems, see :mod:`specbench.analysis.context.sessions`.

    ``average_tok_s`` includes prefills; ``peak_tok_s`` is the median over sessions of the fastest window, without
    prefills.
    """

    sessions: int
    problems: int
    average_tok_s: float | None = None
    peak_tok_s: float | None = None
    window_tokens: int
    windows_tok_s: list[float] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    turns: list[AtTurn] = Field(default_factory=list, json_schema_extra=NO_COLUMN)


class Percentiles(Part):
    """Percentiles of a time in seconds, with bootstrap intervals over prompts; those that ``count`` values cannot show
    are None: the 99th needs 100 values.
    """

    count: int = Field(json_schema_extra=NO_COLUMN)
    p50: Estimate | None = None
    p90: Estimate | None = None
    p95: Estimate | None = None
    p99: Estimate | None = None


class AtRate(Part):
    """Figures of a method at one rate of arrivals. Times count from a request's arrival, so they include its waiting.

    Attributes:
        rate: requests per second that the run asked for; of a ramp, at the start of each block.
        end: requests per second at the end of each block of a ramp; None for a constant rate.
        arrived: requests per second that arrived.
        blocks: blocks of requests; each begins with a warm-up on an empty system.
        ahead: mean number of requests in the system when one arrived.
        waited_s: mean seconds between arrival and start in our engine; of another engine, how late the client sent.
        late: share of requests that the client sent more than 10 ms late; None for our engine, which takes arrivals
            from its own clock.
        growing: whether the queue grew through the blocks: more arrives than is served.
        good: share of requests that met every objective; None without objectives.
        speedup: AR's latency over the method's, summed over the same requests; None for AR.
        over_own: the same over the plain row of the same engine, for another engine's drafting.
    """

    rate: float
    end: float | None = None
    arrived: float | None = None
    requests: int
    blocks: int
    ttft_s: Percentiles | None = None
    tpot_s: Percentiles | None = None
    latency_s: Percentiles | None = None
    ahead: float | None = None
    waited_s: float | None = None
    late: float | None = None
    growing: bool = False
    good: Estimate | None = None
    goodput: Estimate | None = Field(default=None, description="requests per second that met every objective")
    speedup: Speedup | None = None
    over_own: Speedup | None = None

    @property
    def point(self) -> str:
        """The rate as it was written."""
        return f"{self.rate:g}" if self.end is None else f"{self.rate:g}-{self.end:g}"


class Memory(Part):
    """Memory of a method in bytes: the target's weights, the KV cache for all slots, and all memory for drafting."""

    weight_bytes: int
    cache_bytes: int
    draft_bytes: int = 0

    @property
    def total(self) -> int:
        """Sum in bytes."""
        return self.weight_bytes + self.cache_bytes + self.draft_bytes


class Gpu(Part):
    """The GPU during a method's requests: median clock and power, highest temperature."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_per_token_j: float | None = Field(default=None, description="joules per output token, prefills included")
    throttled: int = Field(default=0, description="number of requests whose clocks were held down by power or heat")
    throttle_reasons: list[str] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
