"""Figures with their intervals, and the groups of figures, that the rows of ``summary.json`` consist of.

Later figures have defaults here, and what a newer writer of the same schema adds is left alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.results.columns import FIGURE, NO_COLUMN, SPARSE


class Part(BaseModel):
    """Base of everything in a summary."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    def written(self) -> dict[str, Any]:
        """JSON-ready: what was set or read, and no defaults, so that an older file is written again as it was."""
        return self.model_dump(mode="json", exclude_unset=True)


class PerPromptFigures(Part):
    """How single prompts fared; where sequences were stepped together, how their blocks did."""

    median: float
    geometric_mean: float
    prompts: int | None = Field(default=None, description="that have a ratio")
    faster: int | None = Field(default=None, description="of them those faster than the other row")
    p_value: float | None = Field(default=None, description="of the sign test over them, two-sided")


class PromptsNeeded(Part):
    """How many prompts it takes to tell the difference seen (a share of the slower one's speed) from none."""

    difference: float
    prompts: int | None = None


class JointInterval(Part):
    """The interval of a row that holds together with those of all rows of its table, see ``stats.many``."""

    rows: int
    low: float
    high: float


class Estimate(Part):
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


class Accuracy(Part):
    """A share of right answers, with Wilson's interval."""

    value: float = Field(json_schema_extra=FIGURE)
    passed: int
    scored: int
    low: float | None = None
    high: float | None = None


class RepeatCheck(Part):
    """A method's second row held against its first: the A/A check."""

    of: str
    speedup: Speedup


class AccuracyDifference(Estimate):
    """Right answers less AR's, on the same prompts, with McNemar's p-value."""

    verdict: str
    gained: int
    lost: int
    p_value: float


class OverBase(Part):
    """A row held against plain decoding of the model that the run's model was made from: other weights and answers."""

    speedup: Speedup | None = None
    accuracy_difference: AccuracyDifference | None = None


class Rate(Part):
    """How many prompts have a grade, with Wilson's interval of their share."""

    count: int = Field(ge=0)
    of: int = Field(ge=0)
    low: float | None = Field(default=None, ge=0, le=1)
    high: float | None = Field(default=None, ge=0, le=1)


class NoiseFloor(Part):
    """Where ties end: see :class:`specbench.runner.grades.lossless.Noise`."""

    floor: float
    largest: float
    positions: int
    flips: int
    rows: int
    device: str
    dtype: str
    attention: str


class Divergence(Part):
    """Where an answer left AR's: token index, AR's top-2 gap there (None: one token was possible), and the grade."""

    prompt: str
    at: int
    gap: float | None
    grade: Literal["numeric-tie", "lossy"]


class Lossless(Part):
    """The worst grade of a method's answers, how many have which, and the same over prompts."""

    verdict: Literal["exact", "numeric-tie", "lossy"] = Field(json_schema_extra=FIGURE)
    exact: int = 0
    numeric_tie: int = 0
    lossy: int = 0
    noise_floor: float | None = None
    noise: NoiseFloor | None = Field(default=None, json_schema_extra=NO_COLUMN)
    divergences: list[Divergence] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
    rates: dict[str, Rate] = Field(default_factory=dict, json_schema_extra=NO_COLUMN)


class AtPosition(Part):
    """A method's speed in a window of the answer (tokens after the first), see :mod:`specbench.analysis.positions`.

    ``so_far`` is of the answers from their beginning to ``end``.
    """

    start: int
    end: int
    prompts: int
    tokens_per_forward: float | None = None
    speedup: Speedup | None = None
    so_far: Speedup | None = None


class AtTurn(Part):
    """A method's speed on the n-th problems of their sessions; ``prompt_tokens`` is the median of the context before
    them.
    """

    turn: int
    prompt_tokens: float
    tokens_per_forward: float | None = None
    decode_tok_s: float | None = None
    speedup: Speedup | None = None


class SessionFigures(Part):
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


class Memory(Part):
    """What a method decodes in, in bytes: the target's weights, its KV cache for all slots, and what it drafts with."""

    weight_bytes: int
    cache_bytes: int
    draft_bytes: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weight_bytes + self.cache_bytes + self.draft_bytes


class Gpu(Part):
    """What the GPU did over a method's requests: medians of clock and power, the highest temperature."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_per_token_j: float | None = Field(default=None, description="over all output tokens, prefills included")
    throttled: int = Field(default=0, description="requests on a GPU that was held down")
    throttle_reasons: list[str] = Field(default_factory=list, json_schema_extra=NO_COLUMN)
