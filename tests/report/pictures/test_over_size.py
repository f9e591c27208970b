"""A report on runs of one task with models of several sizes draws a line per method over the size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, answers, folder, run_config

from specbench.report.charts.over_axis import over_size
from specbench.report.gathering import Gathered, Run, read_whole_run
from specbench.report.page.build import build

SIZES = {"starcoder2-3b": (3_030_371_328, 12), "starcoder2-7b": (7_173_923_840, 8)}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    found = []
    for name, (parameters, forwards) in SIZES.items():
        made = run_config(["pld"], 8)
        made = made.model_copy(update={"model": made.model.model_copy(update={"name": name, "parameters": parameters})})
        mine = answers("pld", 8, decode_s=0.03 * forwards, target_forwards=forwards)
        records = [*answers("ar", 8, decode_s=0.72), *mine]
        found.append(read_whole_run(folder(tmp_path / name, made, records, lossless={"pld": EXACT})))
    return found


def test_a_method_stands_at_the_size_of_its_models(runs: list[Run]) -> None:
    speedup, tokens = over_size(runs).axes
    bars: Any = speedup.containers[0]
    line: Any = tokens.lines[0]
    sizes = [parameters for parameters, _ in SIZES.values()]
    assert list(bars.lines[0].get_xdata()) == sizes
    assert list(bars.lines[0].get_ydata()) == pytest.approx([2.0, 3.0])
    assert list(line.get_ydata()) == pytest.approx([24 / 12, 24 / 8])


def test_a_report_has_the_picture_only_for_several_sizes(runs: list[Run]) -> None:
    def pictures(*some: Run) -> list[str]:
        document = build(Gathered(runs=some))
        blocks = [block for section in document.sections for block in section.blocks]
        return [name for block in blocks if (name := getattr(block, "name", "")).startswith("sizes")]

    assert len(pictures(*runs)) == 1
    assert pictures(runs[0]) == []
