"""Chained problems from the command line: run, scored turn by turn, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.asserting import data_folder
from support.wording import wording


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder("gsm8k_test.jsonl")
    argv = ("--task", "gsm8k", "--task-set", "gsm8k.chain=2", "--data-dir", folder, "--max-new-tokens", 4)
    out = tmp_path_factory.mktemp("runs")
    return Path(cli.made(out, "run", "--model", "smollm2-135m", *argv, "--method", "ar,pld", "--limit", 1, "--first"))


def test_each_turn_is_scored_as_its_problem(run: Path) -> None:
    requests = runs.requests_on_disk(run)
    assert [(line["prompt_id"], line["turn"]) for line in requests if line["method"] == "ar"] == [
        ("gsm8k/0+1", 1), ("gsm8k/0+1", 2),
    ]  # fmt: skip
    assert runs.config_on_disk(run)["task"]["options"]["chain"] == 2
    verdicts = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert {line["request"] for line in verdicts} == {line["request_id"] for line in requests}
    references = {line["request"].split("|")[-1]: line["detail"].split("reference")[1] for line in verdicts}
    assert len({*references.values()}) == 2, "the second turn is held against the second problem's answer"


@pytest.mark.parametrize("columns", [80, 140])
def test_the_table_of_sessions_fits(cli: Any, run: Path, columns: int) -> None:
    said = cli.ok("show", run, columns=columns).out
    assert wording(" ".join(said.split()))
    assert max(map(len, said.splitlines())) <= columns
    assert "speedup and interval" not in said


def test_the_report_has_the_picture_where_there_is_a_window(cli: Any, run: Path, tmp_path: Path) -> None:
    cli.ok("report", run, "--out", tmp_path)
    assert "Throughput over a session" not in (tmp_path / "report.html").read_text(), "eight tokens fill no window"
