"""A report on methods of several fine-tuned models draws their speed against their text, both over the base's AR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, answers, folder, run_config

from specbench.report.charts.pareto import has_texts, speed_over_text
from specbench.report.gathering import Gathered, Run, read_whole_run
from specbench.report.page.build import build
from specbench.results.schema import BASE

SPEEDS = {"model-a": 2.0, "model-b": 0.5}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    found = []
    for name, speed in SPEEDS.items():
        made = run_config(["jf"], 8)
        base = made.methods[0].model_copy(update={"label": BASE})
        model = made.model.model_copy(update={"name": name})
        made = made.model_copy(update={"methods": [*made.methods, base], "base": made.model, "model": model})
        records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=1 / speed)]
        records += answers(BASE, 8, decode_s=1.0)
        found.append(read_whole_run(folder(tmp_path / name, made, records, lossless={"jf": EXACT})))
    return found


def test_each_method_of_each_model_is_a_point(runs: list[Run]) -> None:
    agreement, _ = speed_over_text(runs).axes
    bars: Any = agreement.containers
    heights = [float(each.lines[0].get_ydata()[0]) for each in bars]
    assert heights == pytest.approx([1.0, 2.0, 1.0, 0.5])
    texts = [row.text for run in runs for row in run.summary.rows if row.method != BASE]
    assert [float(each.lines[0].get_xdata()[0]) for each in bars] == [text.agreement for text in texts if text]


def test_a_report_has_the_picture_only_for_several_models(runs: list[Run]) -> None:
    assert has_texts(runs)
    assert not has_texts(runs[:1])
    document = build(Gathered(runs=runs))
    names = [getattr(block, "name", "") for section in document.sections for block in section.blocks]
    assert sum(name.startswith("texts") for name in names) == 1
