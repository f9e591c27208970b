"""Summaries, whichever version wrote them: what is read, what is written again, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.runs import answers, run_config
from support.wording import wording

from specbench.analysis.summary import RunContents, summarise
from specbench.common.errors import UsageError
from specbench.results.folder import RunFolder
from specbench.results.summary_schema import RunSummary


def summary() -> RunSummary:
    records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=0.5, target_forwards=8)]
    return summarise(RunContents(run_config(["jf"], 8), records, engine={"attention": "flash"}))


def test_what_is_written_is_read_and_written_alike() -> None:
    made = summary()
    content = json.loads(json.dumps(made.written()))
    assert RunSummary.model_validate(content) == made
    assert RunSummary.model_validate(content).written() == content
    # Every figure is written, also as None: a missing figure means an older version.
    assert content["rows"][1].keys() == type(made.rows[1]).model_fields.keys()


def test_what_comes_later_is_left_alone_and_what_was_not_there_yet_is_not_written() -> None:
    content = json.loads(json.dumps(summary().written()))
    del content["rows"][1]["tpot_median_s"], content["interval"]
    found = RunSummary.model_validate({**content, "of the future": 1})
    assert (found.rows[1].tpot_median_s, found.interval) == (None, None)
    assert found.written() == content


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("tokens_per_forward", "fast", "tokens_per_forward"), ("speedup", {"value": 1.0}, "speedup.verdict"),
        ("tokens", None, "tokens"), ("lossless", {"verdict": "fine"}, "lossless.verdict"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, field: str, value: object, named: str) -> None:
    content = json.loads(json.dumps(summary().written()))
    content["rows"][1][field] = value
    with pytest.raises(UsageError, check=wording):
        read(tmp_path, content)


def test_a_figure_that_is_no_number_and_a_summary_without_rows_are_damage(tmp_path: Path) -> None:
    content = json.loads(json.dumps(summary().written()))
    content["rows"][1]["decode_tok_s"] = float("nan")
    with pytest.raises(UsageError, check=wording):
        read(tmp_path, content)
    for rows in list[Any]((None, [], {})):
        with pytest.raises(UsageError, check=wording):
            read(tmp_path, {"complete": True, "rows": rows})
    with pytest.raises(ValidationError):
        RunSummary.model_validate({"complete": True})


def read(folder: Path, content: Any) -> RunSummary | None:
    """The summary with that content."""
    with RunFolder.create(folder, "ar-gsm8k", "abcdef0123456789", {}) as made:
        (made.path / "summary.json").write_text(json.dumps(content))
        return made.summary()
