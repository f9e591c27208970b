"""Files of a profile, which is what ``specbench profile`` measures for one model on one device.

``<out>/<utc>-profile-<model>-<digest8>/`` contains ``profile.json``, ``steps.csv`` (a row per measured step, units in
the column names) and charts.
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

#: Schema version of ``profile.json``.
SCHEMA = 1

#: Every row count that captured steps are padded to; a captured step has no other row count.
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768)
SLOTS = (1, 2, 4, 8, 16)
SECONDS = 120.0
#: Typical prompt length of the tasks, and the preferred context for single curves.
_USUAL = 512


class Settings(Record):
    """What to measure, and with which kernels. Counts are ascending; rows and slots start with 1."""

    rows: tuple[int, ...] = ROWS
    contexts: tuple[int, ...] = CONTEXTS
    slots: tuple[int, ...] = SLOTS
    clip: bool = Field(default=True, description="shorten contexts that are too long for the model, without an error")
    seconds: float = Field(default=SECONDS, description="time to spend, not counting loading the model")
    attention: str = "auto"
    graphs: Literal["auto", "on", "off"] = "auto"
    compile: bool = False
    native: Literal["auto", "on", "off"] = "auto"


class MeasuredCeilings(Record):
    """Best rates of a device in plain operations on data far larger than any cache: medians.

    ``repeats``: total repetitions of all measurements that the best one was taken from.
    """

    copy_bytes_per_s: float = Field(gt=0, description="read and written by a copy")
    read_bytes_per_s: float = Field(gt=0, description="read by a probe; by a sum on a GPU and without a probe")
    flops_per_s: float = Field(gt=0, description="by a square matrix product in the model's dtype")
    buffer_bytes: int
    matmul_size: int
    repeats: int

    @property
    def ceilings(self) -> Ceilings:
        """Measured ceilings; bandwidth is the larger of the copy and read rates, since either may be faster."""
        best = max(self.copy_bytes_per_s, self.read_bytes_per_s)
        return Ceilings(bytes_per_s=best, flops_per_s=self.flops_per_s)

    def or_better(self, other: MeasuredCeilings) -> MeasuredCeilings:
        """Return the higher of each rate of two measurements, since other load on the device can only lower a rate."""
        rates = ("copy_bytes_per_s", "read_bytes_per_s", "flops_per_s")
        best = {rate: max(getattr(self, rate), getattr(other, rate)) for rate in rates}
        return self.model_copy(update={**best, "repeats": self.repeats + other.repeats})


class LeftOut(Record):
    """A step that was not measured, and the reason."""

    rows: int
    context: int
    slots: int
    why: Literal["time", "memory", "model"]


class FreeRows(Record):
    """How many rows cost at most ``tolerance`` more than one row, in one slot after ``context`` cached tokens."""

    context: int
    rows: int
    below: int | None = Field(description="the next measured row count, which costs more; None if no more was measured")
    tolerance: float


class Profile(Record):
    """All measurements, with the model and machine they were made on."""

    schema_version: int = SCHEMA
    model: ModelSpec
    environment: dict[str, Any]
    settings: Settings
    engine: dict[str, Any] = Field(description="choices of the engine, see Engine.report")
    shape: ModelShape
    measured: MeasuredCeilings
    gpu: str | None = Field(description="name of the GPU in the datasheet table; None if it is not in the table")
    datasheet: Ceilings | None
    base_context: int = Field(description="context of single curves")
    knee: Knee = Field(description="at the base context, in one slot, under the measured ceilings")
    points: list[StepPoint]
    free_rows: list[FreeRows]
    left_out: list[LeftOut]
    interrupted: bool = Field(default=False, description="Ctrl-C ended the measurement early")

    @model_validator(mode="after")
    def _has_the_curve_that_is_shown(self) -> Profile:
        if 1 not in self.curve(self.base_context):
            raise ValueError(f"no step of one row was measured at the base context of {self.base_context} tokens")
        return self

    @property
    def ceilings(self) -> Ceilings:
        """Measured ceilings."""
        return self.measured.ceilings

    @property
    def contexts(self) -> list[int]:
        """Contexts at which one slot was measured."""
        return sorted({point.context for point in self.points if point.slots == 1})

    def curve(self, context: int, slots: int = 1) -> dict[int, StepPoint]:
        """Measured points by number of rows, ascending."""
        found = [point for point in self.points if (point.context, point.slots) == (context, slots)]
        return {point.rows: point for point in sorted(found, key=lambda point: point.rows)}

    @property
    def most_rows(self) -> int:
        """Largest measured row count of one slot at the base context."""
        return max(self.curve(self.base_context), default=0)

    def rows_within(self, times: float) -> int:
        """Largest row count of one slot whose step takes at most ``times`` times as long as one row.

        At the base context. Step times between measured row counts are interpolated linearly; the result is at most
        :attr:`most_rows`.
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
        """sha256 of the model, settings and device, which determine the measurements."""
        device = {key: self.environment["device"][key] for key in ("kind", "name")}
        inputs = {**self.model_dump(mode="json", include={"model", "settings"}), "device": device}
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def datasheet(gpu: Gpu, dtype: str) -> Ceilings | None:
    """Vendor's figures for matrix products of a dtype; None if the vendor states none."""
    tflops = {"bfloat16": gpu.bf16, "float16": gpu.fp16, "float32": gpu.fp32}.get(dtype)
    return None if tflops is None else Ceilings(bytes_per_s=gpu.bandwidth_gb_s * 1e9, flops_per_s=tflops * 1e12)


def base_context(contexts: Sequence[int]) -> int:
    """The context that is closest to a typical prompt length."""
    return min(contexts, key=lambda context: abs(math.log1p(context) - math.log1p(_USUAL)))


def step_rows(profile: Profile) -> list[dict[str, float]]:
    """Return a row per measured point: measured time, cost, lower bound, and the share of the bound it reached."""
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
    # The measurements have no more than six significant digits.
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return text.getvalue()


def is_profile(path: Path) -> bool:
    """Whether a folder contains a profile."""
    return os.path.isfile(path / PROFILE)


def newest_profile(folders: Iterable[Path], suits: Callable[[Profile], bool]) -> Profile | None:
    """Return the newest profile in some folders for which ``suits`` is true; skip profiles that cannot be read."""
    places = [place for folder in folders if folder.is_dir() for place in folder.iterdir() if is_profile(place)]
    for place in sorted(places, key=lambda place: place.name, reverse=True):
        with contextlib.suppress(UsageError):
            found = read_profile(place)
            if suits(found):
                return found
    return None


def read_profile(path: Path) -> Profile:
    """Read a profile from its folder."""
    file, todo = path / PROFILE, "restore it or profile again"
    content = read_json_object(file, todo)
    schema_version(content, file, SCHEMA, todo)
    return validate(Profile, content, file, todo)
