"""Rows of summaries, whichever version wrote them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from reported import answers, config
from runs import COMMITTED

from specbench.common.errors import UsageError
from specbench.results.summary import summarise
from specbench.results.summary_rows import summary_rows


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name[:16])
def test_rows_of_older_versions_are_rows(folder: Path) -> None:
    content = json.loads((folder / "summary.json").read_text())
    found = summary_rows(content)
    assert [row.method for row in found] == [row["method"] for row in content["rows"]]
    assert found[0].baseline
    assert not found[1].baseline


def summary() -> dict[str, Any]:
    records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=0.5, forwards=8)]
    return summarise(config(["jf"], 8), records)


def test_everything_that_is_written_now_is_kept_and_what_comes_later_is_left_alone() -> None:
    content = json.loads(json.dumps(summary()))
    content["rows"][1]["of the future"] = 1
    row = summary_rows(content)[1]
    assert row.speedup is not None
    assert row.speedup.shown
    dumped = row.model_dump()
    assert dumped["speedup"] == content["rows"][1]["speedup"]
    assert {name for name in content["rows"][1] if name not in dumped} <= {
        "of the future", "lossless_claimed", "tpf_all", "overshoot_tokens", "stop_tail_tokens",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tpf", "fast", "tpf"), ("speedup", {"value": 1.0}, "speedup.verdict"), ("tokens", None, "tokens"),
        ("lossless", {"verdict": "fine"}, "lossless.verdict"), ("tok_s", float("nan"), "tok_s"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named(field: str, value: object, said: str) -> None:
    content = summary()
    content["rows"][1][field] = value
    with pytest.raises(UsageError, match=f"field '{re.escape(said)}'"):
        summary_rows(content)


@pytest.mark.parametrize("content", [{}, {"rows": []}, {"rows": {}}, {"rows": None}])
def test_a_summary_without_rows_is_none(content: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no rows"):
        summary_rows(content)
