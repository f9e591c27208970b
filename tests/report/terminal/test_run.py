"""The sentences below the headline table: verdicts, detectable differences, and the noise of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import runs
from support.asserting import known

from specbench.analysis.read import ReadRun, read_run
from specbench.report.document import Table
from specbench.report.gathering import read_whole_run
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.acceptance import acceptance_table
from specbench.report.tables.notes import notes
from specbench.report.tables.run_table import finding, run_report
from specbench.results.summary_schema import RunSummary


@pytest.fixture
def read(tmp_path: Path) -> ReadRun:
    """Twelve real prompts, AR and one method, lossless as far as it was checked."""
    made = read_run(runs.derived(tmp_path / "run"))
    exact = {"verdict": "exact", "exact": 12, "numeric_tie": 0, "lossy": 0}
    return replace(made, summary=saying(made, lossless=exact, text=None))


def saying(read: ReadRun, **row: Any) -> RunSummary:
    """The summary where the method's row says so."""
    content = read.summary.model_dump()
    content["rows"][1].update(row)
    return RunSummary.model_validate(content)


def noted(read: ReadRun, **row: Any) -> list[str]:
    """The sentences where the method's row says so."""
    return notes(read.run, saying(read, **row))


def ratio(value: float, low: float | None, high: float | None, shown_text: str, **more: Any) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "verdict": shown_text, **more}


def test_a_speedup_is_taken_apart_and_spread_over_prompts(read: ReadRun) -> None:
    speedup = known(read.summary.rows[1].speedup)
    each = known(speedup.per_prompt)
    (shown_text,) = [line for line in noted(read) if line.startswith("jetspec: ")][-1:]
    assert shown_text.startswith(f"jetspec: {speedup.verdict}; {speedup.value:.2f} = ")
    assert all(part in shown_text for part in (f"{each.median:.2f}", f"{each.geometric_mean:.2f}"))


def test_acceptance_without_a_histogram_is_shown(tmp_path: Path) -> None:
    """As another engine reports it."""
    run = read_whole_run(runs.derived(tmp_path / "run"))
    found = known(run.summary.rows[1].acceptance).model_dump()
    changed = saying(read_run(run.path), acceptance={**found, "histogram": {}})
    assert acceptance_table(replace(run, summary=changed)).rows[-1].cells[-1].text == ""


def test_phases_are_shown_for_the_methods_that_have_them(read: ReadRun) -> None:
    blocks = run_report(read.run, saying(read, phases={"forward_s": 0.02}))
    (table,) = (block for block in blocks if isinstance(block, Table) and block.name == "phases")
    assert [row.method for row in table.rows] == ["jetspec"]


def rated(exact: int, tie: int, lossy: int) -> dict[str, Any]:
    counts = {"exact": exact, "numeric-tie": tie, "lossy": lossy}
    rates = {grade: {"count": count, "of": 12, "low": 0.25, "high": 0.75} for grade, count in counts.items()}
    shown_text = "lossy" if lossy else "numeric-tie" if tie else "exact"
    return {"verdict": shown_text, "exact": exact, "numeric_tie": tie, "lossy": lossy, "rates": rates}


@pytest.mark.parametrize("columns", [80, 140])
def test_rates_are_a_table_where_answers_part(read: ReadRun, columns: int) -> None:
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(render_terminal(run_report(read.run, saying(read, lossless=rated(9, 1, 2)))))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= columns
    at = next(number for number, line in enumerate(lines) if line.split()[:3] == ["AR's", "text", "exact"])
    assert lines[at + 2].split("  ")[0] == "jetspec"
    assert "9/12 [25%, 75%]" in lines[at + 2]
    assert "1/12 [25%, 75%]" in lines[at + 2]


FOUND = [
    (ratio(1.5, 1.2, 1.8, "faster"), "exact", "faster than ar: jetspec 1.50 [1.20, 1.80]; all texts are ar's."),
    (
        ratio(0.5, 0.4, 0.6, "slower"),
        "numeric-tie",
        "slower than ar: jetspec 0.50 [0.40, 0.60]; not every text of jetspec is ar's.",
    ),
    (ratio(1.0, 0.9, 1.1, "no difference shown"), None, "no difference shown: jetspec 1.00 [0.90, 1.10]."),
    (
        ratio(2.0, None, None, "too few prompts"),
        "exact",
        "too few prompts to say: jetspec 2.00 (too few); all texts are ar's.",
    ),
]


@pytest.mark.parametrize(("speedup", "graded", "sentence"), FOUND, ids=lambda value: None)
def test_what_was_found_is_one_sentence(read: ReadRun, speedup: Any, graded: str | None, sentence: str) -> None:
    lossless = graded and {"verdict": graded, "exact": 1, "numeric_tie": 0, "lossy": 0}
    assert finding(saying(read, speedup=speedup, lossless=lossless)) == f"Found: {sentence}"
