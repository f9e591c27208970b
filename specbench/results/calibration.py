"""Calibration times: what the automatic settings of a run were chosen by, as its folder keeps it. No torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Rows = Annotated[int, Field(ge=1, lt=1 << 31)]


class StoredTimes(BaseModel):
    """Times that were measured once, before anything was timed.

    Attributes:
        times: seconds of something, or of a step by its rows.
        measured_utc: when.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    times: Seconds | Annotated[list[tuple[Rows, Seconds]], Field(min_length=1)]
    measured_utc: str

    @property
    def by_rows(self) -> bool:
        """Whether it is times of steps by their rows, and not of one thing."""
        return isinstance(self.times, list)
