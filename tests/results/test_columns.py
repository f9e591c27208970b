"""Columns from fields: the rule on models of its own, and what it makes of records and summaries."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.wording import wording

from specbench.analysis.frame import METHOD, REQUEST
from specbench.results.columns import FIGURE, NO_COLUMN, SPARSE, cells_of, columns_of, named_columns
from specbench.results.request_schema import RequestRecord
from specbench.results.summary_schema import MethodSummary


class Inner(BaseModel):
    value: float = Field(json_schema_extra=FIGURE)
    low: float | None = None
    count: int
    words: list[str] = Field(default_factory=list, json_schema_extra=NO_COLUMN)


class Outer(BaseModel):
    name: str
    kind: Literal["a", "b"]
    sure: bool
    perhaps: bool | None = None
    count: int = 0
    at: int | None = None
    ratio: Inner | None = None
    now_and_then: Inner | None = Field(default=None, json_schema_extra=SPARSE)
    own: dict[str, float] = Field(default_factory=dict, json_schema_extra=named_columns("mine"))
    several: dict[str, Inner | None] = Field(default_factory=dict, json_schema_extra=named_columns("each"))


def test_a_column_has_the_type_of_its_field() -> None:
    assert columns_of(Outer) == {
        "name": "string", "kind": "string", "sure": "bool", "perhaps": "boolean", "count": "int64", "at": "Int64",
        "ratio": "float64", "ratio_low": "float64", "ratio_count": "Int64",
    }  # fmt: skip


def test_values_are_flat_and_what_there_is_not_is_no_cell() -> None:
    inner = Inner(value=2.0, count=3, words=["no", "column"])
    made = Outer(name="n", kind="a", sure=True, ratio=inner, now_and_then=inner, own={"x": 1.5})
    made = made.model_copy(update={"several": {"b": inner, "c": None}})
    assert cells_of(made) == {
        "name": "n", "kind": "a", "sure": True, "count": 0, "ratio": 2.0, "ratio_count": 3, "now_and_then": 2.0,
        "now_and_then_count": 3, "mine_x": 1.5, "each_b": 2.0, "each_b_count": 3,
    }  # fmt: skip


def test_a_field_that_makes_no_column_has_to_say_so() -> None:
    class Unmarked(BaseModel):
        found: list[int] = []

    with pytest.raises(TypeError, check=wording):
        columns_of(Unmarked)


@pytest.mark.parametrize(
    ("model", "columns", "left_out"),
    [
        (
            RequestRecord, REQUEST,
            {
                "output_ids", "text", "accepted_lengths", "acceptance_histogram", "step_s", "gap_s", "grown_from",
                "phases_s", "measures", "gpu", "tokens", "branches",
            },
        ),
        (
            MethodSummary, METHOD,
            {
                "acceptance", "options", "phases", "measures", "gpu", "again", "over_base", "metrics", "groups", "text",
                "memory", "positions", "prefix_share", "drafted_as", "branches", "session", "other", "fault",
                "contexts", "rates", "sequences", "perplexity", "ttft_s", "tpot_s", "itl_s", "latency_s",
            },
        ),
    ],
)  # fmt: skip
def test_every_field_of_a_model_is_a_column_but_those_that_say_otherwise(
    model: type[BaseModel], columns: Any, left_out: set[str]
) -> None:
    assert {name for name in model.model_fields if name not in columns} == left_out
