from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.runs import COMMITTED, derived

from specbench.analysis.read import ReadRun, read_run
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.notes import LEGEND
from specbench.report.tables.run_table import run_report
from specbench.results.request_schema import PHASES


def shown(read: ReadRun, columns: int = 80) -> str:
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(render_terminal(run_report(read.run, read.summary)))
    return captured.get()


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_run_reads_and_shows(folder: Path) -> None:
    read = read_run(folder)
    assert len(read.records) == sum(row.requests for row in read.summary.rows) > 0
    text = shown(read)
    assert all(row.method in text for row in read.summary.rows)
    assert LEGEND.split(".")[0] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def split(line: dict[str, Any]) -> None:
    """The i-th phase of a step takes i ms of AR and 10 i ms of the others."""
    unit = 1e-3 if line["method"] == "ar" else 1e-2
    line["phases_s"] = {phase: [unit * at] * line["target_forwards"] for at, phase in enumerate(PHASES, 1)}


def test_phases_are_a_table_below_the_headline_of_those_that_were_traced(tmp_path: Path) -> None:
    read = read_run(derived(tmp_path / "run", split))
    lines = [line.split() for line in shown(read).splitlines()]
    header = ["ms", "a", "step", *PHASES, "host"]
    _, ar, method = lines[lines.index(header) + 1 :][:3]
    assert ar == ["ar", "1.00", "2.00", "3.00", "4.00", "5.00", "6.00", "18.00"]
    assert method == ["jetspec", "10.00", "20.00", "30.00", "40.00", "50.00", "60.00", "180.00"]
    plain, *others = read.summary.rows
    rows = [plain.model_copy(update={"phases": None}), *others]
    untraced = replace(read, summary=read.summary.model_copy(update={"rows": rows}))
    below = shown(untraced).partition("ms a step")[2]
    assert "jetspec" in below
    assert "\nar " not in below
