"""``specbench claims``: what is published, legible in a narrow terminal and a wide one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specbench.report.claims.catalog import published_claims


def test_json_has_every_row_with_its_bound(cli: Any) -> None:
    rows = {row["id"]: row for row in json.loads(cli("claims", "--json").out)}
    assert len(rows) == len(published_claims().claims)
    row = rows["jf-humaneval/jf-mr"]
    assert (row["speedup"], row["tok_s"], row["baseline_tok_s"], row["metric"]) == (4.0, 163.9, 41.3, "%")
    assert row["bandwidth_bound_tok_s"] == pytest.approx(
        [1555e9 / (2 * row["parameters"]), 1935e9 / (2 * row["parameters"]), 2039e9 / (2 * row["parameters"])]
    )
    assert all(row["url"].startswith("https://") for row in rows.values())
    assert rows["cllm-forward/cllm-n-16-llama2-7b-gsm8k"]["also"] == {"fast_forwarded": 2.8, "stationary": 2.0}
    unknown = rows["jf-humaneval/eagle-3-another"]
    assert (unknown["parameters"], unknown["bandwidth_bound_tok_s"]) == (None, [])
