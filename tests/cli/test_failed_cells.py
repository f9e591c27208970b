"""A sweep whose method fails: the cell is named and marked, the others are decoded to their end, and the code is 6."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from chaos import plugins
from support.wording import wording

from specbench.common import registry
from specbench.results.folder import RunFolder

SWEEP = (
    "sweep", "--model", "config:tiny", "--max-new-tokens", 6, "--task", "prompts", "--method", "chaos,jacobi",
    "--grid", "jacobi.n=2,4", "--limit", 5, "--held-out", 2,
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, in which there is nothing yet."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "Count to {at} and on."}}\n' for at in range(7)))
    return path


def check(out: Path, result: str) -> None:
    """The others are whole, and the cell says what became of it."""
    (folder,) = out.glob("[!.]*")
    cells = pd.read_csv(folder / "cells.csv")
    tuning = cells[cells["set"] == "tuning"].set_index("label")
    assert dict(tuning["stopped"].fillna("")) == {"chaos": "failed", "ar": "", "jacobi n=2": "", "jacobi n=4": ""}
    assert (tuning["prompts"].drop("chaos") == 5).all()
    assert result in tuning.loc["chaos", "fault"]
    with RunFolder.load(folder / "c1") as run:
        assert sum(record.method == "chaos" for record in run.records()) < 5


def test_a_cell_that_raises(cli: Any, tmp_path: Path, site: Path) -> None:
    plugins.install(site, "raise ValueError('no luck')")
    registry._found.cache_clear()
    try:
        result = cli(*SWEEP, "--data-file", prompts(tmp_path), "--out", tmp_path / "out", columns=100)
    finally:
        registry._found.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "chaos_method"]:
            del sys.modules[name]
    assert result.code == 6
    fault = "method 'chaos' (from specbench-chaos) failed in draft (ValueError: no luck at decoder.py line"
    assert result.err.splitlines()[-1].startswith(f"error: chaos: {fault}")
    assert wording.sentences(result.out)
    check(tmp_path / "out", fault)
