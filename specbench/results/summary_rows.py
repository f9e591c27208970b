"""The rows of ``summary.json``, typed: what reports may rely on, whichever version wrote them. No torch.

Figures that came later have defaults here, and what a newer writer of the same schema adds is left alone. A row that
does not fit is damaged, and nothing of its run is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.common import UsageError
from specbench.common.errors import first_fault
from specbench.results.schema import BASELINE, SimulatedAcceptance


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class PerPrompt(_Part):
    """How single prompts fared."""

    median: float
    geometric_mean: float


class ToTell(_Part):
    """How many prompts it takes to tell a difference; None where no number does."""

    difference: float
    prompts: int | None = None


class Speedup(_Part):
    """A ratio with its interval; without one there is no verdict on it."""

    value: float
    low: float | None = None
    high: float | None = None
    verdict: str
    per_prompt: PerPrompt | None = None
    detectable: float | None = None
    to_tell: ToTell | None = None

    @property
    def shown(self) -> bool:
        """Whether it has an interval."""
        return self.low is not None and self.high is not None


class Accuracy(_Part):
    """A share of right answers, with Wilson's interval."""

    value: float
    passed: int
    scored: int
    low: float | None = None
    high: float | None = None


class Again(_Part):
    """A method's second row held against its first: the A/A check."""

    of: str
    speedup: Speedup


class Difference(_Part):
    """Right answers less AR's, on the same prompts."""

    value: float
    low: float | None = None
    high: float | None = None
    verdict: str
    gained: int
    lost: int
    p_value: float


class OverBase(_Part):
    """A row held against plain decoding of the model that the run's model was made from."""

    speedup: Speedup | None = None
    accuracy_difference: Difference | None = None


class Rate(_Part):
    """How many prompts have a grade, with Wilson's interval of their share."""

    count: int
    of: int
    low: float | None = None
    high: float | None = None


class Lossless(_Part):
    """The worst grade of a method's answers, how many have which, and the same over prompts."""

    verdict: Literal["exact", "numeric-tie", "lossy"]
    exact: int = 0
    numeric_tie: int = 0
    lossy: int = 0
    rates: dict[str, Rate] = Field(default_factory=dict)


class Group(_Part):
    """The figures of one group of categories, ours and Spec-Bench's."""

    prompts: int
    tpf: float | None = None
    tok_s: float | None = None
    speedup: Speedup | None = None
    specbench_mat: float | None = None
    specbench_speedup: float | None = None


class Gpu(_Part):
    """What the GPU did over a method's requests."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_per_token_j: float | None = None
    throttled: int = 0
    throttle_reasons: list[str] = Field(default_factory=list)


class Row(_Part):
    """One method of a run."""

    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    prompts: int
    requests: int
    tokens: int
    tpf: float | None
    tok_s: float | None
    e2e_tok_s: float | None = None
    step_s: float | None = None
    rows_per_step: float | None = None
    ttft_median_s: float | None = None
    target_forwards: int
    draft_forwards: int = 0
    truncated: int = 0
    speedup: Speedup | None = None
    e2e_speedup: Speedup | None = None
    step_ratio: float | None = None
    length_changed: int = 0
    prompt_changed: int = 0
    again: Again | None = None
    over_base: OverBase | None = None
    accuracy: Accuracy | None = None
    accuracy_difference: Difference | None = None
    metrics: dict[str, Accuracy | None] = Field(default_factory=dict)
    groups: dict[str, Group] = Field(default_factory=dict)
    lossless: Lossless | None = None
    simulated: SimulatedAcceptance | None = None
    phases: dict[str, float] | None = None
    measures: dict[str, float] = Field(default_factory=dict)
    gpu: Gpu | None = None

    @property
    def baseline(self) -> bool:
        """Whether it is the AR twin of the others."""
        return self.method == BASELINE


def summary_rows(summary: Mapping[str, Any]) -> list[Row]:
    """The rows of a summary.

    Raises:
        UsageError: it has none, or one does not fit; names the field.
    """
    found = summary.get("rows")
    if not isinstance(found, list) or not found:
        raise UsageError("summary.json has no rows")
    try:
        return [Row.model_validate(row) for row in found]
    except ValidationError as error:
        raise UsageError(f"summary.json: {first_fault(error)}") from error
