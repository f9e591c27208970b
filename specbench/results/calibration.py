"""Measurements made before the timed part of a run, stored so that a resumed run decodes with the same settings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from specbench.common import parse_count
from specbench.results.attachment import Attachment

Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Rows = Annotated[int, Field(ge=1, lt=1 << 31)]


class StoredTimes(BaseModel):
    """Times measured once before the timed part: seconds, or a list of (rows, seconds per step)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    times: Seconds | Annotated[list[tuple[Rows, Seconds]], Field(min_length=1)]
    measured_utc: str

    @property
    def by_rows(self) -> bool:
        """Whether these are step times by number of rows, and not a single time."""
        return isinstance(self.times, list)


def _padding(step: dict[str, Any]) -> dict[str, Any]:
    padded = step.get("padded_to")
    good = isinstance(padded, dict) and all(
        # A session's own report has numbers as keys; JSON has them as text.
        (type(rows) is int or parse_count(rows) is not None) and type(bucket) is int and bucket > 0
        for rows, bucket in padded.items()
    )
    if not good:
        raise ValueError("padded_to has to map each number of rows to the number it is padded to")
    return step


def _product(shape: dict[str, Any]) -> dict[str, Any]:
    if not _says_product(shape):
        raise ValueError("it has to name the kernel of a matrix product, its sizes and the measured times")
    return shape


def _says_product(shape: dict[str, Any]) -> bool:
    if shape.get("kernel") not in ("own", "torch"):
        return False
    sizes = [shape.get("out"), shape.get("in")]
    timed, why_not = shape.get("timed"), shape.get("why_not")
    if not isinstance(timed, list) or not isinstance(shape.get("torch_s"), list) or not isinstance(why_not, str):
        return False
    if not all(isinstance(each, dict) and isinstance(each.get("seconds"), list) for each in timed):
        return False
    cut = [each.get("config") for each in timed] + ([shape.get("config")] if shape["kernel"] == "own" else [])
    return all(type(size) is int and size > 0 for size in sizes) and all(
        isinstance(each, dict)
        and each.keys() == {"block_n", "block_k", "splits", "warps", "stages"}
        and all(type(number) is int and number > 0 for number in each.values())
        for each in cut
    )


class SettledSteps(BaseModel):
    """Content of ``steps.json``: per engine, the measured steps that decide how rows are padded, and the kernels chosen
    for matrix products of few rows.
    """

    engines: list[list[Annotated[dict[str, Any], AfterValidator(_padding)]]]
    products: list[list[Annotated[dict[str, Any], AfterValidator(_product)]]] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _without_empty(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        return found if any(self.products) else {"engines": found["engines"]}


_AGAIN = "delete it and run it again"

STEPS = Attachment("steps.json", SettledSteps, _AGAIN)
TIMES = Attachment("times.json", dict[str, StoredTimes], _AGAIN)
