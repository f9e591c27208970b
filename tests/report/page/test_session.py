"""Throughput over a session on the page: the curve and its table."""

from __future__ import annotations

from pathlib import Path

from support import runs
from support.runs import CHAINED, turn

from specbench.report.gathering import read_whole_run
from specbench.report.page.run_section import run_section


def test_the_picture_and_its_table(tmp_path: Path) -> None:
    records = [turn("ar", f"p{at}", n, [1.0] * 64, 1) for at in range(6) for n in (1, 2)]
    records += [turn("pld", f"p{at}", n, [0.5 * n] * 32, 2) for at in range(6) for n in (1, 2)]
    task = CHAINED.model_copy(update={"prompts": 6, "requests": 12})
    run = read_whole_run(runs.folder(tmp_path, runs.run_config(["pld"], 6, task=task), records))
    (figure,) = [figure for figure in run_section(run).figures() if figure.name.endswith("-session")]
    assert figure.data is not None
    rows = {row.key: [cell.text for cell in row.cells] for row in figure.data.rows}
    assert rows["ar / 1"] == ["ar", "1", "100", "1.00", "1.0", "1"]
    assert rows["pld / 1"][3:5] == ["2.00", "4.0"]
    assert rows["pld / 2"][3:5] == ["2.00", "2.0"]
    assert rows["pld / 1"][5].startswith("4.00")
    assert rows["pld / peak"][4] == "4.0"
    assert rows["pld / average"][4] == f"{2 * 65 / (16 + 32 + 1):.1f}"
    assert "6 sessions, each of 2 chained problems" in figure.source.formula
    assert "tok/s" in str(figure.content)
