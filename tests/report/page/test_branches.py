"""What a table and a page say of drafted branches: how many nats too much they promise, and how many keep it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support import runs
from support.runs import answers, run_config

from specbench.report.gathering import read_whole_run
from specbench.report.page.run_section import run_section
from specbench.results.branches import BRANCHES, RatedBranch, RatedRequest
from specbench.results.request_log import RequestLog


def run(out: Path, gaps: Sequence[float]) -> Path:
    """An unfinished run, whose summary is made of its files, with as many branches of two tokens as gaps."""
    jetspec = answers("jetspec", 2, decode_s=1.0)
    path = runs.folder(out, run_config(["jetspec"], 2), [*answers("ar", 2, decode_s=1.0), *jetspec], finish=False)
    rated = [RatedBranch(tokens=2, promised=-1.0, said=-1.0 - gap) for gap in gaps]
    log = RequestLog(path / BRANCHES)
    log.append(RatedRequest(request=jetspec[0].request_id, branches=rated).model_dump(mode="json"))
    log.close()
    return path


def test_a_sentence_and_a_table_have_each_figure_in_its_place(tmp_path: Path) -> None:
    path = run(tmp_path, [1.0, 2.0, 30.0, 100.0, 3.0, 44.0, 4.0, 0.0])
    (table,) = [table for table in run_section(read_whole_run(path)).tables() if table.name == "branches"]
    (row,) = table.rows
    assert [column.key for column in table.columns] == [
        "method", "branches", "tokens", "gap_median", "gap_mean", "kept_share", "broken_share",
    ]  # fmt: skip
    assert [cell.text for cell in row.cells] == ["jetspec", "8", "2.0", "3.5", "23.0", "62%", "12%"]
