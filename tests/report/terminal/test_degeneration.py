"""What a table says of texts: only where there is something to see, and of speedups that loops have made."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import runs
from support.runs import EXACT, LOSSY, answers, run_config
from support.wording import wording

from specbench.analysis.read import ReadRun, read_run
from specbench.report.document import Words
from specbench.report.gathering import Run, read_whole_run
from specbench.report.page.run_section import run_section
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.run_table import run_report
from specbench.report.tables.text_quality import made_by_loops, text_tables
from specbench.results.summary_schema import MethodSummary


def shown(read: ReadRun, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_terminal(run_report(read.run, read.summary, read.judged)))
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return written


def in_one_line(read: ReadRun) -> str:
    return " ".join(shown(read).split())


def made(out: Path, looping: Sequence[int], factor: float = 4.0, prompts: int = 8, **more: Any) -> Path:
    """A run whose method is ``factor`` times as fast as AR where both loop, and as fast elsewhere."""

    def ids(at: int) -> list[int]:
        return [*range(5), *[2] * 20] if at in looping else list(range(25))

    fast = [
        one.model_copy(update={"decode_s": one.decode_s / factor} if int(one.prompt_id[2:]) in looping else {})
        for one in answers("jf", prompts, decode_s=1.0, output_ids=ids)
    ]
    records = [*answers("ar", prompts, decode_s=1.0, output_ids=ids), *fast]
    given = {"lossless": dict.fromkeys(["ar", "jf"], EXACT), **more}
    return runs.folder(out, run_config(["jf"], prompts), records, **given)


def row(path: Path) -> MethodSummary:
    return read_run(path).summary.rows[1]


def test_the_table_is_there_where_there_is_something_to_see(tmp_path: Path) -> None:
    assert "looping" not in shown(read_run(made(tmp_path / "sound", [])))
    looping = shown(read_run(made(tmp_path / "looping", [0, 1])))
    (line,) = [line.split() for line in looping.splitlines() if line.startswith("jf") and "2/8" in line]
    assert line == ["jf", "2/8", "20%", "0.80", "0.81", "0.82", "100%", "25.0"]
    lossy = shown(read_run(made(tmp_path / "lossy", [], lossless={"ar": EXACT, "jf": LOSSY})))
    assert "0/8" in lossy
    assert "log-lik." not in lossy, "no model has rated the texts"


def page_notes(run: Run) -> list[str]:
    blocks = run_section(run).blocks
    return [line for block in blocks if isinstance(block, Words) and block.kind == "notes" for line in block.lines]


@pytest.mark.parametrize(("looping", "factor", "noted"), [([0, 1], 4.0, True), ([0, 1], 1.3, False), ([], 4.0, False)])
def test_a_speedup_that_falls_by_over_a_tenth_without_loops_says_so(
    tmp_path: Path, looping: list[int], factor: float, noted: bool
) -> None:
    path = made(tmp_path, looping, factor)
    found = list(made_by_loops(row(path)))
    assert bool(found) == noted
    # 1.3 times as fast on a quarter of the prompts is 6% in all, too little for a note.
    assert ("falls to" in in_one_line(read_run(path))) == noted
    assert noted == any(line in found for line in page_notes(read_whole_run(path)))


def test_it_says_both_figures_and_how_many_prompts_are_left_out(tmp_path: Path) -> None:
    (note,) = made_by_loops(row(made(tmp_path, [0, 1])))
    whole = row(tmp_path / next(tmp_path.iterdir())).speedup
    assert whole is not None
    assert note.startswith(f"jf: {whole.value:.2f} [")
    assert wording(note)
    assert len(list(made_by_loops(row(made(tmp_path / "few", [0, 1, 2]))))) == 1
    (repetitive,) = made_by_loops(row(made(tmp_path / "all", range(8))))
    assert "8 of 8 prompts" in repetitive


def test_a_page_has_the_table_folded_and_no_speed_that_it_withholds(tmp_path: Path) -> None:
    run = read_whole_run(made(tmp_path, [0, 1], lossless={"ar": EXACT, "jf": LOSSY}))
    (table,) = text_tables(run)
    assert table.folded
    looping = [dict(zip((column.key for column in table.columns), one.cells, strict=True)) for one in table.rows]
    assert [(cells["looping"].text, cells["looping"].value) for cells in looping] == [("2/8", 2)] * 2
    assert [cells["agreement"].value for cells in looping] == [None, 1]
    assert not [line for line in page_notes(run) if "falls to" in line], "lossy and not scored: no speed is shown"
