"""What a table says of texts: only where there is something to see, and of speedups that loops have made."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import runs
from support.runs import EXACT, LOSSY, OLDER, answers, run_config
from support.wording import wording

from specbench.report.gathering import read_whole_run
from specbench.report.page.degeneration import loop_notes, text_tables
from specbench.report.terminal.degeneration import made_by_loops
from specbench.report.terminal.run import finding, headline
from specbench.results.read import ReadRun, read_run
from specbench.results.summary_schema import MethodSummary

MBPP = next(OLDER.glob("20261121T230123Z-*"))


def shown(read: ReadRun, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(headline(read.run, read.summary, read.judged))
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
    assert "log-lik." not in lossy, "nobody has asked a model"


def test_it_fits_a_terminal_of_80_columns(tmp_path: Path) -> None:
    lines = shown(read_run(made(tmp_path, [0, 1])), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["jf", "2/8", "20%"] for line in lines)


def test_rows_with_the_same_text_share_a_line(tmp_path: Path) -> None:
    assert [line.split()[:3] for line in shown(read_run(MBPP)).splitlines() if "4/6" in line] == [["ar,", "jf", "4/6"]]


def test_of_a_lottery_nothing_is_said(tmp_path: Path) -> None:
    records = [*answers("ar", 8, decode_s=1.0, output_ids=lambda at: [2] * 25), *answers("jf", 8, decode_s=0.5)]
    path = runs.folder(tmp_path, run_config(["jf"], 8, lot=["jf"]), records)
    assert "looping" not in shown(read_run(path))
    assert list(made_by_loops(row(path))) == []
    assert text_tables(read_whole_run(path)) == []


@pytest.mark.parametrize(("looping", "factor", "told"), [([0, 1], 4.0, True), ([0, 1], 1.3, False), ([], 4.0, False)])
def test_a_speedup_that_falls_by_over_a_tenth_without_loops_says_so(
    tmp_path: Path, looping: list[int], factor: float, told: bool
) -> None:
    path = made(tmp_path, looping, factor)
    found = list(made_by_loops(row(path)))
    assert bool(found) == told
    # On a quarter of the prompts 1.3 times as fast is 6% in all: no more than a table should bear in silence.
    assert ("falls to" in in_one_line(read_run(path))) == told
    assert loop_notes(read_whole_run(path)) == found


def test_it_says_both_figures_and_how_many_prompts_are_left_out(tmp_path: Path) -> None:
    (said,) = made_by_loops(row(made(tmp_path, [0, 1])))
    whole = row(tmp_path / next(tmp_path.iterdir())).speedup
    assert whole is not None
    assert said.startswith(f"jf: {whole.value:.2f} [")
    assert wording(said)
    (said,) = made_by_loops(row(made(tmp_path / "few", [0, 1, 2])))
    (said,) = made_by_loops(row(made(tmp_path / "all", range(8))))
    assert said.endswith("is of looping answers alone: on 8 of 8 prompts one of the two loops.")


def test_the_adapter_that_was_called_faster_is_told_with_what_is_left_of_it() -> None:
    said = in_one_line(read_run(MBPP))
    assert wording(said)


def test_what_was_found_is_not_told_without_what_loops_made_of_it(tmp_path: Path) -> None:
    assert finding(read_run(MBPP).summary).startswith(
        "Found: faster than ar: jf 1.38 [1.00, 1.89] (1.12 without looping answers); "
    )
    assert wording(finding(read_run(made(tmp_path / "all", range(8))).summary))
    assert "looping" not in finding(read_run(made(tmp_path / "sound", [])).summary)


def test_a_page_has_the_table_folded_and_no_speed_that_it_withholds(tmp_path: Path) -> None:
    run = read_whole_run(made(tmp_path, [0, 1], lossless={"ar": EXACT, "jf": LOSSY}))
    (table,) = text_tables(run)
    assert table.folded
    looping = [dict(zip((column.key for column in table.columns), one.cells, strict=True)) for one in table.rows]
    assert [(cells["looping"].text, cells["looping"].value) for cells in looping] == [("2/8", 2)] * 2
    assert [cells["agreement"].value for cells in looping] == [None, 1]
    assert loop_notes(run) == [], "lossy and not scored: its speed is not told"
