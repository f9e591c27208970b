"""``show --request`` and ``export`` on a run as it is made, in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import runs


@pytest.fixture(scope="module", params=[False, True], ids=["headline", "trace"])
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    argv = ("--model", "config:tiny", "--max-new-tokens", 12, "--method", "jacobi,lookahead", "--limit", 2, "--first")
    trace = ["--trace"] if request.param else []
    return Path(cli.made(tmp_path_factory.mktemp("runs"), "run", *argv, *trace, "--no-score"))


def test_a_key_is_one_generation(cli: Any, run: Path) -> None:
    result = cli.ok("show", run, "--request", "lookahead|HumanEval/0|0")
    assert result.out.count("step rows tokens text") == 1
    assert result.out.startswith("lookahead on HumanEval/0: 12 tokens")
    traced = runs.config_on_disk(run)["trace"]
    assert ("✗" in result.out, "--trace" in result.out) == (traced, not traced)


def test_a_prompt_is_all_its_generations_in_the_runs_order(cli: Any, run: Path) -> None:
    result = cli("show", run, "--request", "HumanEval/1")
    titles = [line.split()[0] for line in result.out.splitlines() if " on HumanEval/1: " in line]
    assert titles == ["ar", "jacobi", "lookahead"]
    result = cli("show", run, "--request", "HumanEval/1", "--method", "jacobi")
    assert result.out.count(" on HumanEval/1: ") == 1


def test_json(cli: Any, run: Path) -> None:
    result = cli("show", run, "--request", "jacobi|HumanEval/0|0", "--json")
    (data,) = json.loads(result.out)
    assert sum(data["origins"].values()) == data["output_tokens"] == 12
    assert sum(len(step["tokens"]) for step in data["steps"]) == 12
    traced = runs.config_on_disk(run)["trace"]
    assert [step["drafts"] is not None for step in data["steps"][1:]] == [traced] * data["target_forwards"]


def test_export_is_a_row_per_request(cli: Any, run: Path) -> None:
    frame = pd.read_csv(io.StringIO(cli("report", run, "--to", "csv").out))
    assert len(frame) == 6
    assert set(frame["output_tokens"]) == {12}
    assert {"ttft_s", "decode_s", "option_block_size"} <= set(frame.columns)


def test_export_of_chosen_columns_to_a_file(cli: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "table.md"
    result = cli("report", run, "--summary", "--to", "md", "--columns", "method,requests", "--out", out)
    assert (result.code, result.out) == (0, "")
    assert out.read_text().splitlines()[2:] == ["| ar | 2 |", "| jacobi | 2 |", "| lookahead | 2 |"]
