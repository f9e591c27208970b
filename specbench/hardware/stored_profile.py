"""A profile, what ``specbench profile`` measured of one model on one device: its files, and reading them.

``<out>/<utc>-profile-<model>-<digest8>/`` holds ``profile.json``, ``steps.csv`` (a row per measured step, units in the
column names) and pictures.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from specbench.common import UsageError, read_json_object, schema_version, validate
from specbench.hardware.gpus import Gpu
from specbench.hardware.roofline import Ceilings, Knee, ModelShape, StepPoint, bound_s, step_cost
from specbench.results import ModelSpec, Record

PROFILE, STEPS = "profile.json", "steps.csv"

#: Of ``profile.json``.
SCHEMA = 1

#: Every row count that captured steps are padded to, so that nothing lies between two of them there.
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768)
SLOTS = (1, 2, 4, 8, 16)
SECONDS = 120.0
#: What most prompts of the tasks are near to; the context that single curves are shown at.
_USUAL = 512


class Settings(Record):
    """What is to be measured, and on what kernels. Counts are ascending; rows and slots begin with 1."""

    rows: tuple[int, ...] = ROWS
    contexts: tuple[int, ...] = CONTEXTS
    slots: tuple[int, ...] = SLOTS
    clip: bool = Field(default=True, description="shorten contexts to what the model takes, instead of refusing them")
    seconds: float = Field(default=SECONDS, description="time to spend, the loading of the model apart")
    attention: str = "auto"
    graphs: Literal["auto", "on", "off"] = "auto"
    compile: bool = False
    native: Literal["auto", "on", "off"] = "auto"


class MeasuredCeilings(Record):
    """What a device did at best, by plain operations far larger than any cache: medians.

    ``repeats`` are those of every measurement that it is the best of.
    """

    copy_bytes_per_s: float = Field(gt=0, description="read and written by a copy")
    read_bytes_per_s: float = Field(gt=0, description="read by a probe; by a sum on a GPU and without a probe")
    flops_per_s: float = Field(gt=0, description="by a square matrix product in the model's dtype")
    buffer_bytes: int
    matmul_size: int
    repeats: int

    @property
    def ceilings(self) -> Ceilings:
        """Bandwidth is the larger of the two: which one a device does better differs."""
        best = max(self.copy_bytes_per_s, self.read_bytes_per_s)
        return Ceilings(bytes_per_s=best, flops_per_s=self.flops_per_s)

    def or_better(self, other: MeasuredCeilings) -> MeasuredCeilings:
        """Rate by rate the higher of two measurements of one device: what else it serves only takes from it."""
        rates = ("copy_bytes_per_s", "read_bytes_per_s", "flops_per_s")
        best = {rate: max(getattr(self, rate), getattr(other, rate)) for rate in rates}
        return self.model_copy(update={**best, "repeats": self.repeats + other.repeats})


class LeftOut(Record):
    """A step that was not measured, and what stood against it."""

    rows: int
    context: int
    slots: int
    why: Literal["time", "memory", "model"]


class FreeRows(Record):
    """How many rows cost at most ``tolerance`` over one row, in one slot behind ``context`` cached tokens."""

    context: int
    rows: int
    below: int | None = Field(description="the next row count that was measured, which costs more; None: there is none")
    tolerance: float


class Profile(Record):
    """Everything that was measured, and what it was measured on."""

    schema_version: int = SCHEMA
    model: ModelSpec
    environment: dict[str, Any]
    settings: Settings
    engine: dict[str, Any] = Field(description="what the engine chose, see Engine.report")
    shape: ModelShape
    measured: MeasuredCeilings
    gpu: str | None = Field(description="the datasheet's name; None where none is known")
    datasheet: Ceilings | None
    base_context: int = Field(description="the context that single curves are shown at")
    knee: Knee = Field(description="at the base context, in one slot, under the measured ceilings")
    points: list[StepPoint]
    free_rows: list[FreeRows]
    left_out: list[LeftOut]
    interrupted: bool = Field(default=False, description="Ctrl-C ended it before its time was over")

    @model_validator(mode="after")
    def _has_the_curve_that_is_shown(self) -> Profile:
        if 1 not in self.curve(self.base_context):
            raise ValueError(f"no step of one row was measured at the base context of {self.base_context} tokens")
        return self

    @property
    def ceilings(self) -> Ceilings:
        """The measured ones."""
        return self.measured.ceilings

    @property
    def contexts(self) -> list[int]:
        """Contexts that one slot was measured at."""
        return sorted({point.context for point in self.points if point.slots == 1})

    def curve(self, context: int, slots: int = 1) -> dict[int, StepPoint]:
        """Measured points by rows, ascending."""
        found = [point for point in self.points if (point.context, point.slots) == (context, slots)]
        return {point.rows: point for point in sorted(found, key=lambda point: point.rows)}

    @property
    def most_rows(self) -> int:
        """The most rows that one slot was measured with at the base context."""
        return max(self.curve(self.base_context), default=0)

    def rows_within(self, times: float) -> int:
        """The most rows whose step takes at most so many times one row's, at the base context in one slot.

        Between measured row counts a step's time is taken to grow evenly. Beyond :attr:`most_rows` nothing is known.
        """
        curve = self.curve(self.base_context)
        most = times * curve[1].seconds
        rows = 1
        for before, after in pairwise(curve.values()):
            if after.seconds > most:
                share = (most - before.seconds) / (after.seconds - before.seconds)
                return max(1, before.rows + int(share * (after.rows - before.rows)))
            rows = after.rows
        return rows

    def digest(self) -> str:
        """sha256 of what decides the figures: model, settings, device."""
        device = {key: self.environment["device"][key] for key in ("kind", "name")}
        told = {**self.model_dump(mode="json", include={"model", "settings"}), "device": device}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def datasheet(gpu: Gpu, dtype: str) -> Ceilings | None:
    """What the vendor states for matrix products of a dtype; None where that is nothing."""
    tflops = {"bfloat16": gpu.bf16, "float16": gpu.fp16, "float32": gpu.fp32}.get(dtype)
    return None if tflops is None else Ceilings(bytes_per_s=gpu.bandwidth_gb_s * 1e9, flops_per_s=tflops * 1e12)


def base_context(contexts: Sequence[int]) -> int:
    """Of several contexts the one that is nearest to a usual prompt."""
    return min(contexts, key=lambda context: abs(math.log1p(context) - math.log1p(_USUAL)))


def step_rows(profile: Profile) -> list[dict[str, float]]:
    """A row per measured point: what was measured, what it cost at least, and how near that was."""
    rows = []
    for point in sorted(profile.points, key=lambda p: (p.slots, p.context, p.rows)):
        cost = step_cost(profile.shape, point.rows, point.context, point.slots)
        bound = bound_s(cost, profile.ceilings)
        rows.append(
            {
                "rows": point.rows,
                "context_tokens": point.context,
                "slots": point.slots,
                "step_ms": 1e3 * point.seconds,
                "step_low_ms": 1e3 * point.low_s,
                "step_high_ms": 1e3 * point.high_s,
                "steps": point.steps,
                "flops": cost.flops,
                "bytes": cost.bytes,
                "intensity_flop_per_byte": cost.intensity,
                "achieved_gflop_s": cost.flops / point.seconds / 1e9,
                "achieved_gb_s": cost.bytes / point.seconds / 1e9,
                "bound_ms": 1e3 * bound,
                "share_of_bound": bound / point.seconds,
            }
        )
    return rows


def steps_csv(profile: Profile) -> str:
    """:func:`step_rows` as CSV."""
    rows = step_rows(profile)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    # Six digits: more were not measured.
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return text.getvalue()


def is_profile(path: Path) -> bool:
    """Whether a folder is a profile's."""
    return os.path.isfile(path / PROFILE)


def newest_profile(folders: Iterable[Path], suits: Callable[[Profile], bool]) -> Profile | None:
    """The newest profile in some folders that suits; one that cannot be read does not count."""
    places = [place for folder in folders if folder.is_dir() for place in folder.iterdir() if is_profile(place)]
    for place in sorted(places, key=lambda place: place.name, reverse=True):
        with contextlib.suppress(UsageError):
            found = read_profile(place)
            if suits(found):
                return found
    return None


def read_profile(path: Path) -> Profile:
    """A profile from its folder."""
    file, todo = path / PROFILE, "restore it or profile again"
    content = read_json_object(file, todo)
    schema_version(content, file, SCHEMA, todo)
    return validate(Profile, content, file, todo)
