"""``run --simulate-acceptance``: dummy weights at a published acceptance, and never mistaken for a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording

TINY = ("run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 33, "--method", "jacobi,pld")


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("runs")
    result = cli.ok(*TINY, "--simulate-acceptance", "4", "--out", out)
    (folder,) = out.iterdir()
    return result, folder


def test_tokens_per_forward_are_those_asked_for_and_ar_is_as_ever(run: tuple[Any, Path]) -> None:
    found = runs.rows_on_disk(run[1])
    assert (found["ar"]["tokens_per_forward"], found["ar"]["simulated"]) == (1, None)
    assert (found["jacobi"]["tokens_per_forward"], found["jacobi"]["simulated"]) == (4, {"mean": 4, "spread": 0})
    # Dummy text repeats nothing, so lookup drafts too little to accept; what came of it is what is reported.
    assert 1 <= found["pld"]["tokens_per_forward"] < 4


def test_nothing_is_graded_or_scored(run: tuple[Any, Path]) -> None:
    result, folder = run
    assert not (folder / "verdicts.jsonl").exists()
    assert not (folder / "likelihoods.jsonl").exists(), "of a text that means nothing no one is asked"
    assert {(row["lossless"], row["accuracy"]) for row in runs.rows_on_disk(folder).values()} == {(None, None)}
    assert "losslessness" not in result.err
    assert "scoring" not in result.err


@pytest.mark.parametrize("columns", [80, 140])
def test_every_line_with_a_figure_says_so(cli: Any, run: tuple[Any, Path], columns: int) -> None:
    shown = cli("show", run[1], "--verbose", columns=columns).out
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.split())
    assert wording.sentences(words)
    assert "pass@1" not in words
    for label in ("jacobi", "pld"):
        lines = [line for line in shown.splitlines() if line.startswith(label)]
        assert len(lines) >= 2
        assert all("simulated" in line for line in lines)
    came = runs.rows_on_disk(run[1])["pld"]["tokens_per_forward"]
    assert f"{came:.2f}" in words
    assert "jacobi (simulated): 4.00 tokens" not in words
    ar = next(line for line in shown.splitlines() if line.startswith("ar "))
    assert "the target's" in ar
    requests = cli("show", run[1], "--requests", columns=columns).out.splitlines()[2:]
    assert [line.split()[-1] for line in requests] == [
        "–" if line.split()[1] == "ar" else "simulated" for line in requests
    ]
