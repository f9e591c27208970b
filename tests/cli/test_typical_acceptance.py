"""A row with typical acceptance in a run: lossy above temperature 0 by design, whatever its texts are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis import read_run
from specbench.report.tables.run_table import candidates
from specbench.results import RunSummary

SETTINGS = ("medusa#2.accept=typical", "medusa.head=random", "medusa#2.head=random", "medusa.budget=8")
PAIR = ("--method", "medusa,medusa", *(part for setting in SETTINGS for part in ("--set", setting)))


def run(cli: Any, out: Path, temperature: float, more: Sequence[object] = ()) -> tuple[RunSummary, str]:
    """Six prompts with medusa and, as medusa#2, with typical acceptance."""
    file = out / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Once upon {n} times"}) + "\n" for n in range(6)))
    command = ("run", "--model", "config:tiny", "--task", "prompts", "--data-file", file, "--max-new-tokens", 6)
    found = cli.ok(*command, *PAIR, "--temperature", temperature, "--out", out / "runs", *more)
    (folder,) = (out / "runs").iterdir()
    return RunSummary.model_validate_json((folder / "summary.json").read_text()), found.out


def test_a_typical_row_is_lossy_and_cannot_win(cli: Any, tmp_path: Path) -> None:
    summary, shown = run(cli, tmp_path, 1.0)
    exact, typical = summary.rows[1:]
    assert (exact.lossless_claimed, typical.lossless_claimed) == (True, False)
    assert exact.lossless is not None
    assert typical.lossless is not None
    assert (exact.lossless.verdict, typical.lossless.verdict) == ("exact", "lossy")
    assert any(line.startswith("medusa#2") and "lossy" in line for line in shown.splitlines())
    assert summary.fastest is not None
    assert (summary.fastest.method, summary.fastest.among) == ("medusa", 1)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [row.method for row in candidates(read_run(folder), withholding=False)] == ["medusa"]


def test_a_greedy_typical_row_is_exact(cli: Any, tmp_path: Path) -> None:
    summary, _ = run(cli, tmp_path, 0.0)
    assert [row.lossless and row.lossless.verdict for row in summary.rows[1:]] == ["exact", "exact"]
    assert summary.fastest is None or summary.fastest.among == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_check_lossless_does_not_hold_it_against_the_method(cli: Any, tmp_path: Path, temperature: float) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Once upon a time"}\n')
    found = cli.ok(
        "check-lossless", "--model", "config:tiny", "--task", "prompts", "--data-file", file, "--max-new-tokens", 6,
        *PAIR, "--temperatures", temperature, "--seeds", "0:1", "--json",
    )  # fmt: skip
    rows = {row["method"]: row["verdict"] for row in json.loads(found.out)["rows"]}
    assert rows == {"medusa": "exact", "medusa#2": "lossy" if temperature else "exact"}
