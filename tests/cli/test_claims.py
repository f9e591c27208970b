"""``specbench claims``: what is published, legible in a narrow terminal and a wide one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, answers, folder, run_config

from specbench.report.claims import claims


def test_json_has_every_row_with_its_bound(cli: Any) -> None:
    rows = {row["id"]: row for row in json.loads(cli("claims", "--json").out)}
    assert len(rows) == len(claims().claims)
    row = rows["jf-humaneval/jf-mr"]
    assert (row["speedup"], row["tok_s"], row["baseline_tok_s"], row["metric"]) == (4.0, 163.9, 41.3, "%")
    assert row["bandwidth_bound_tok_s"] == pytest.approx(
        [1555e9 / (2 * row["parameters"]), 1935e9 / (2 * row["parameters"]), 2039e9 / (2 * row["parameters"])]
    )
    assert all(row["url"].startswith("https://") for row in rows.values())
    assert rows["cllm-forward/cllm-n-16-llama2-7b-gsm8k"]["also"] == {"fast_forwarded": 2.8, "stationary": 2.0}
    unknown = rows["jf-humaneval/eagle-3-another"]
    assert (unknown["parameters"], unknown["bandwidth_bound_tok_s"]) == (None, [])


@pytest.mark.parametrize(("command", "begins"), [(["claims"], "Figures as printed there"), (["list", "gpus"], "")])
def test_a_reader_that_has_seen_enough_is_no_error(command: list[str], begins: str) -> None:
    command = [sys.executable, "-m", "specbench", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if begins:
            assert process.stdout.readline().startswith(begins), "the key comes first"
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


# ------------------------------------------------------------------ held against a run of ours

MULTIBLOCK = {"multiblock": True, "recycling": True, "block_size": 64, "num_blocks": 2, "pool_size": 4}


@pytest.fixture(scope="module")
def jacobi_forcing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published checkpoint on an A100, as in the post's table: 4.1 tokens a forward, 4.0 times AR's 41 tok/s."""
    made = run_config(["jf"], 24)
    ar, jf = made.methods
    made = made.model_copy(
        update={
            "model": made.model.model_copy(update={"name": "jf-coder-7b", "parameters": 7_615_616_512}),
            "methods": [ar, jf.model_copy(update={"options": MULTIBLOCK})],
        }
    )
    records = [
        *answers("ar", 24, decode_s=82 / 41.3, output_tokens=83, target_forwards=82),
        *answers("jf", 24, decode_s=82 / 163.9, output_tokens=83, target_forwards=20),
    ]
    return folder(tmp_path_factory.mktemp("runs"), made, records, lossless={"jf": EXACT})


def test_verdicts_as_json_have_the_row_and_both_figures(cli: Any, jacobi_forcing: Path) -> None:
    found = json.loads(cli("claims", "--check", jacobi_forcing, "--method", "jf", "--json").out)
    by_id = {(each["claim"]["id"], each["figure"]): each for each in found}
    first = by_id["jf-humaneval/jf-mr", "TPF"]
    assert (first["verdict"], first["published"], first["row"]) == ("repeated", 4.1, "jf")
    assert first["low"] <= 4.1 <= first["high"]
    assert first["claim"]["url"].startswith("https://")
    assert by_id["jf-humaneval/jf-mr", "tok/s"]["verdict"] == "not repeated", "later answers are slower here"
    assert by_id["jf-gsm8k/jf-mr", "TPF"]["why"] == ["task: humaneval, not gsm8k"]
    assert {each["claim"]["method"] for each in found} == {"jf"}
    verdicts = [each["verdict"] == "not comparable" for each in found]
    assert verdicts == sorted(verdicts)
