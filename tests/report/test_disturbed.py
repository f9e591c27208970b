"""A disturbed run wherever it is shown: a line says why, and no row of it is a winner, coloured or counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.asserting import refusal
from support.runs import EXACT, answers, busy, folder, run_config
from support.wording import wording

from specbench.analysis.comparison import compare, read_sides, regressions
from specbench.common.errors import Undecided
from specbench.report.charts.crossing import crossing, crossings
from specbench.report.document import Document, Findings, Row, Section, Table, Words
from specbench.report.gathering import gather
from specbench.report.page.build import build
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.comparison import comparison_report
from specbench.report.tables.sweep import found, sentences, sweep_advice
from specbench.results.request_schema import RequestRecord

WHY = "AR's step time drifted by 28% (limit 25%)"


def slow_at_first(records: list[RequestRecord], factor: float) -> list[RequestRecord]:
    """The same with a slower first third, as if other work ended then."""
    return [
        one.model_copy(
            update={
                "decode_s": one.decode_s * slow,
                "decode_share_s": one.decode_s * slow,
                "latency_s": one.ttft_s + one.decode_s * slow,
                "segment": at,
            }
        )
        for at, one in enumerate(records)
        for slow in (factor if at < len(records) // 3 else 1.0,)
    ]


def made(out: Path, factor: float) -> Path:
    """A run in which ``fast`` is four times as fast as AR, ``slow`` half as fast, and ``same`` neither."""
    records = [
        one
        for label, seconds, forwards in (("ar", 1.0, 24), ("fast", 0.25, 4), ("slow", 2.0, 24), ("same", 1.003, 24))
        for one in slow_at_first(
            [
                # Level, with a little up and down, so that intervals have a width.
                one.model_copy(update={"decode_s": seconds * (1 + 0.01 * ((at + ord(label[1])) % 3))})
                for at, one in enumerate(answers(label, 12, decode_s=1.0, target_forwards=forwards))
            ],
            factor,
        )
    ]
    created = f"2026-01-0{1 + int(factor > 1)}T03:04:05+00:00"  # two runs at one time would be the same
    lossless = {"fast": EXACT, "slow": EXACT}
    return folder(out, run_config(("fast", "slow", "same"), 12), records, lossless=lossless, created=created)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs that differ only in the other work on the machine."""
    return {name: made(tmp_path_factory.mktemp(name), factor) for name, factor in (("quiet", 1.0), ("loud", 1.28))}


def shown(part: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return " ".join(text.split())


def section(found: Document | Section, name: str) -> Section:
    (one,) = [each for each in found.sections if each.title.startswith(name)]
    return one


def rows(found: Section) -> list[Row]:
    return [row for block in found.blocks if isinstance(block, Table) for row in block.on("page").rows]


def test_the_page_names_no_winner_and_colours_none(runs: dict[str, Path]) -> None:
    page = build(gather([*runs.values()]))
    best = {row.run: (row.cells[-4].text, row.cells[-1].text) for row in rows(section(page, "At a glance"))}
    assert sorted(best.values()) == [("fast", "faster"), ("–", "unsure")]
    loud = next(run for run, (_, verdict) in best.items() if verdict == "unsure")
    task = section(page, "humaneval")
    tones = {(row.run == loud, row.method): row.cells[4] for row in rows(task)}
    assert {(cell.text, cell.tone) for (is_loud, _), cell in tones.items() if not is_loud} >= {
        ("faster", "good"), ("slower", "bad")
    }  # fmt: skip
    assert {(cell.text, cell.tone) for (is_loud, method), cell in tones.items() if is_loud and method != "ar"} == {
        ("unsure: faster", ""), ("unsure: slower", ""), ("unsure: no difference shown", "")
    }  # fmt: skip
    (part,) = {row.part for row in rows(task) if row.run == loud}
    assert part.endswith(f"disturbed: {WHY}; verdicts are unsure")
    warned = [
        (each.title, block.lines)
        for each in task.sections
        for block in each.blocks
        if isinstance(block, Words) and block.kind == "warning"
    ]
    assert warned == [(f"Run {loud}", [f"Disturbed: {WHY}; verdicts are unsure."])]
    facts = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in rows(section(page, "Environment"))}
    assert sorted(facts["disturbed"]) == [WHY, "no, judged by AR's steps only"]


def test_a_figure_has_one_interval_and_one_verdict_on_the_page(runs: dict[str, Path]) -> None:
    page = build(gather([*runs.values()]))
    (cards,) = (block.findings for block in section(page, "In short").blocks if isinstance(block, Findings))
    (quiet,) = cards
    row = next(row for row in rows(section(page, "humaneval")) if row.method == "fast" and row.cells[4].tone)
    low, high = row.cells[3].low, row.cells[3].high
    assert low is not None
    assert high is not None
    assert low < high
    assert quiet.lines["How sure"].startswith(f"{low:.2f} to {high:.2f} ")
    overview = next(row for row in rows(section(page, "At a glance")) if row.method == "fast")
    assert (overview.cells[-2].low, overview.cells[-2].high) == (low, high)
    alone = build(gather([runs["loud"]]))
    (cards,) = (block.findings for block in section(alone, "In short").blocks if isinstance(block, Findings))
    assert {mark.name for mark in cards[0].marks} == {"? fast", "? slow", "? same"}


def compared(*targets: object) -> dict[str, Any]:
    return compare(read_sides([str(target) for target in targets]))


def test_what_is_compared_with_a_disturbed_run_is_unsure(runs: dict[str, Path]) -> None:
    found = compared(runs["quiet"], runs["loud"])
    (row,) = [row for row in found["rows"] if row["methods"] == ["fast", "fast"]]
    assert row["speedup"]["verdict"].startswith("unsure: ")
    assert row["over_ar"]["verdict"] == "unsure: no difference shown"
    assert [run["disturbed"] for run in found["runs"]] == [[], [WHY]]
    text = shown(render_terminal(comparison_report(found)))
    assert f"{WHY}" in text
    assert WHY in refusal(Undecided, regressions, found, 0.97)
    assert regressions(found, 0.97, over_ar=True) == []
    assert [row["methods"] for row in regressions(found, 1.5, over_ar=True)] == [
        ["fast", "fast"], ["slow", "slow"], ["same", "same"]
    ]  # fmt: skip
    within = compared(f"{runs['loud']}:fast", f"{runs['loud']}:slow")
    assert len(regressions(within, 0.97)) == 1, "methods of one run are interleaved"
    alone = compared(f"{runs['quiet']}:fast", f"{runs['quiet']}:slow")
    assert alone["rows"][0]["speedup"]["verdict"] == "slower"
    assert len(regressions(alone, 0.97)) == 1


CELL = {
    "label": "jf n=8", "method": "jf", "concurrency": 1, "set": "tuning", "prompts": 8, "tokens_per_forward": 1.5,
    "rows_per_step": 9.0, "speedup": 1.3, "speedup_low": 1.2, "speedup_high": 1.4, "best": True, "within_noise": True,
    "stopped": "", "disturbed": WHY, "verdict": "unsure: faster", "blocks": float("nan"), "chosen_low": float("nan"),
    "chosen_high": float("nan"),
}  # fmt: skip
RUN = {
    "task": {"name": "humaneval"},
    "model": {"name": "toy", "dtype": "float32"},
    "environment": {"device": {"name": "cpu"}},
}


def test_a_disturbed_sweep_recommends_nothing() -> None:
    advice = sweep_advice(RUN, pd.DataFrame([CELL]), [(1, 1.0)], "jf")
    assert not advice["faster"]
    assert advice["sentences"][-1].startswith(f"Disturbed: {WHY}; unsure whether it is faster than ar: repeat ")
    quiet = sweep_advice(RUN, pd.DataFrame([{**CELL, "disturbed": "", "verdict": "faster"}]), [(1, 1.0)], "jf")
    assert quiet["faster"]
    assert found(CELL) == "unsure: best"
    assert wording(sentences(pd.DataFrame([CELL]))[0])


def test_a_crossing_of_a_disturbed_concurrency_is_not_sure() -> None:
    measured = busy("jf", {1: (1.4, 1.5, 1.6), 4: (0.5, 0.6, 0.7)})
    assert [each.sure for each in crossings(measured)] == [True]
    disturbed = measured.assign(disturbed=["", WHY], verdict=["faster", "unsure: slower"])
    assert [each.sure for each in crossings(disturbed)] == [False]
    paying = busy("jf", {1: (1.4, 1.5, 1.6), 4: (1.2, 1.3, 1.4)})
    for cells_, shown_text in (
        (paying, "from 1 to 4."),
        (paying.assign(disturbed=["", WHY], verdict=["faster", "unsure: faster"]), "in part within noise."),
    ):
        words = " ".join(text.get_text() for text in crossing(cells_).texts)
        assert shown_text in " ".join(words.split())
