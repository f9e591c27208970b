"""``specbench claims``: what is published, legible in a narrow terminal and a wide one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, answers, folder, run_config
from support.wording import wording

from specbench.report.claims import claims


def test_it_fits_and_cuts_no_figure(cli: Any) -> None:
    for columns in (80, 140):
        said = cli.ok("claims", columns=columns)
        assert max(map(len, said.out.splitlines())) <= columns
        assert "…" not in said.out
        printed = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", said.out))
        for claim in claims().claims:
            for figure in (
                claim.speedup, claim.tpf, claim.tok_s, claim.baseline_tok_s, claim.accuracy, *claim.also.values(),
            ):  # fmt: skip
                assert figure is None or str(figure) in printed, claim
        assert {claim.url for claim in claims().claims} <= set(said.out.split()), "no address is cut"


@pytest.mark.parametrize("columns", [80, 140])
def test_a_row_reads_from_method_to_caveat_below_the_key(cli: Any, columns: int) -> None:
    said = cli("claims", "--method", "jf", "--task", "humaneval", columns=columns)
    words = " ".join(said.out.split())
    assert words.startswith("Figures as printed there; – is not given. TPF")
    assert wording(words)
    (line,) = [line for line in said.out.splitlines() if "163.9" in line]
    assert line.split()[:8] == ["jf", "4.0", "4.1", "163.9", "41.3", "110–144", "83.5", "MR;"]


def test_filters(cli: Any) -> None:
    def found(*argv: str) -> list[tuple[str, str]]:
        return [(row["method"], row["task"]) for row in json.loads(cli("claims", *argv, "--json").out)]

    assert {*found("--method", "jetspec", "--task", "gsm8k")} == {("jetspec", "gsm8k")}
    assert {task for _, task in found("--method", "jetspec")} > {"gsm8k"}
    assert {"spec-bench", "spec-bench:qa"} < {task for _, task in found("--task", "spec-bench")}, "a task's parts"
    assert {task for _, task in found("--task", "spec-bench:qa")} == {"spec-bench:qa"}


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


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--method", "jff"), "unknown method of a claim 'jff'; did you mean jf?"),
        (("--task", "gsm8"), "unknown task of a claim 'gsm8'; did you mean gsm8k?"),
        (("--method", "jf", "--task", "spider"), "unknown task of a claim 'spider'; known: gsm8k, humaneval, math"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(cli: Any, argv: tuple[str, ...], says: str) -> None:
    assert cli.refused(2, "claims", *argv) == f"error: {says}"


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


@pytest.mark.parametrize("columns", [80, 140])
def test_a_run_is_held_against_what_it_repeats(cli: Any, jacobi_forcing: Path, columns: int) -> None:
    said = cli.ok("claims", "--check", jacobi_forcing, columns=columns)
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in said.out
    words = " ".join(said.out.split())
    assert words.startswith("there: as printed. here: the run's, with its 95% interval over prompts;")
    compared, _, left = words.partition(" method not comparable ")
    assert wording(compared)
    assert "https://hao-ai-lab.github.io/blogs/jacobi-forcing/ " in compared
    assert wording(left)
    assert "pld" not in said.out, "the run has none"


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


def test_what_is_no_run_is_refused(cli: Any, tmp_path: Path) -> None:
    said = cli.refused(2, "claims", "--check", tmp_path)
    assert said.endswith("is not a run folder (it has no run.json); name a folder that specbench run wrote")
