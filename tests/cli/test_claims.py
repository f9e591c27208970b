"""``specbench claims``: what is published, legible in a narrow terminal and a wide one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs

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


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    """A run of jetspec on gsm8k with a model and a device that no publication has."""
    return runs.derived(tmp_path / "20270101T000000Z-run")


def test_a_check_answers_in_ten_lines(cli: Any, gsm8k: Path) -> None:
    result = cli.ok("claims", "--check", gsm8k)
    lines = result.out.splitlines()
    assert len(lines) <= 10
    assert "None" not in result.out
    checks = json.loads(cli.ok("claims", "--check", gsm8k, "--json").out)
    assert lines[0].startswith(
        f"{len(checks)} published figures: 0 agree, 0 disagree, {len(checks)} cannot be compared"
    )
    text = " ".join(lines)
    mine = [c for c in checks if (c["row"], c["figure"]) == ("jetspec", "speedup")]
    there = [c["claim"]["speedup"] for c in mine if not any(why.startswith("task:") for why in c["why"])]
    ours = mine[0]
    assert f"jetspec speedup: published {min(there)} to {max(there)} ({len(there)}); yours {ours['ours']:.2f} [" in text
    assert "To compare: specbench run --model qwen3-8b --method jetspec --task gsm8k" in text
    assert "--all" in text
    assert not any("None" in why for check in checks for why in check["why"])
    assert len(cli.ok("claims", "--check", gsm8k, "--all").out.splitlines()) > 50
    assert "--check" in cli.refused(2, "claims", "--all")
