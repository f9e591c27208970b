"""``check-lossless`` beyond its verdict: rates, where answers parted, and methods that draw noise of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

TINY = ("check-lossless", "--model", "config:tiny", "--limit", 2)
OWN = 'title = "Own"\nsummary = "Draws noise of its own"\nlossless = true\nnoise = "own"\n'


@pytest.fixture
def own(liar: str, tmp_path: Path) -> Path:
    """The liar, which now says that its noise is its own; its package."""
    (tmp_path / liar / "method.toml").write_text(OWN)
    return tmp_path / liar


@pytest.fixture
def honest(own: Path) -> Path:
    """The same without the lie: its texts are AR's, noise and all."""
    code = (own / "decoder.py").read_text()
    (own / "decoder.py").write_text(code.replace("self.steps == 4", "self.steps == -4"))
    return own


SAMPLED = ("--method", "liar", "--max-new-tokens", 8, "--temperatures", "0.02", "--seeds", "0:5", "--limit", 1)


def test_a_liar_with_noise_of_its_own_is_found_by_the_distribution_of_its_texts(cli: Any, own: Path) -> None:
    result = cli(*TINY, *SAMPLED, "--json")
    found = json.loads(result.out)
    assert found["rows"] == []  # token by token nothing can be said
    (tested,) = found["distributions"]
    assert (tested["method"], tested["temperature"], tested["verdict"]) == ("liar", 0.02, "different")
    assert found["drawn"] == {"humaneval": "prompts: 1 of 164, sampled with seed 0"}
    assert tested["answers"] == 2 * 6
    assert (result.code, found["ok"]) == (4, False)
    assert wording(result.error)


def test_a_run_leaves_its_sampled_texts_ungraded_and_says_what_to_do(cli: Any, honest: Path, tmp_path: Path) -> None:
    command = (
        "run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 6, "--method", "liar,jacobi", "--no-score",
    )  # fmt: skip
    result = cli.ok(*command, "--temperature", 1, "--out", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    graded = {label: row["lossless"] and row["lossless"]["verdict"] for label, row in runs.rows_on_disk(folder).items()}
    assert graded == {"ar": "exact", "liar": None, "jacobi": "exact"}
    assert wording.sentences(result.out)


def test_rates_are_over_prompts_and_divergences_are_listed(cli: Any, liar: str) -> None:
    command = (*TINY, "--method", f"jacobi,{liar}", "--max-new-tokens", 8, "--temperatures", "0,1", "--seeds", "0")
    result = cli(*command, "--first")
    assert result.code == 4
    assert result.error.startswith(
        "error: liar is declared lossless but left AR at token 4 of HumanEval/0 (T=0, seed 0,"
    )
    assert max(map(len, result.out.splitlines())) <= 80
    rows = [line.split() for line in result.out.splitlines() if line.startswith("humaneval ")]
    assert [(row[3], row[-1]) for row in rows] == [("jacobi", "exact"), ("liar", "lossy")] * 2
    lines = [line.split() for line in result.out.splitlines()]
    at = next(number for number, words in enumerate(lines) if words[:2] == ["AR's", "text"])
    assert lines[at + 2][:2] == ["jacobi", "2/2"]
    assert lines[at + 3][:2] == ["liar", "0/2"]
    parted = [words for words in lines if words[:1] == ["HumanEval/0"]]
    assert [words[1:5] for words in parted] == [["liar", "0", "0", "4"], ["liar", "1", "0", "4"]]
    assert {words[-1] for words in parted} == {"lossy"}
