"""The first page for people: which runs it speaks of, and that it claims no more than their tables do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import races
import reported
from reported import EXACT, LOSSY, answers

from specbench.report.gathering import Gathered, Run, gather, read_whole_run
from specbench.report.page.document import Finding, Findings
from specbench.report.page.findings import in_short, pictured, races_of
from specbench.report.page.run import traces
from specbench.results.summary_schema import Disturbed


def finding(run: Run) -> Finding:
    found = Gathered([run])
    (block,) = in_short(found, races_of(found)).blocks
    assert isinstance(block, Findings)
    (made,) = block.findings
    return made


def made(
    out: Path, speeds: dict[str, float], prompts: int = 12, lossless: Any = EXACT, right: Any = None, **more: Any
) -> Run:
    """Methods with so many times AR's speed, give or take nothing."""
    records = [*answers("ar", prompts, decode_s=1.0, target_forwards=24)]
    for label, speed in speeds.items():
        records += answers(label, prompts, decode_s=1 / speed, target_forwards=12)
    graded = dict.fromkeys(["ar", *speeds], lossless)
    path = reported.folder(out, reported.config([*speeds], prompts), records, lossless=graded, right=right, **more)
    return read_whole_run(path)


def test_a_winner(tmp_path: Path) -> None:
    said = finding(made(tmp_path, {"pld": 1.5, "jf": 0.5}, right=lambda one: one.prompt_id < "p/3"))
    assert (said.figure, said.tone, said.claim) == ("1.50×", "good", "`pld` is faster than plain decoding")
    assert said.on == "humaneval · config:qwen3-8b · NVIDIA A100-SXM4-80GB"
    assert said.lines["How sure"].startswith("1.50 to 1.50 with 95% confidence, on 12 prompts.")
    assert "jf" in said.lines["How sure"], "whether it may be the best, too"
    assert (
        said.lines["How right"]
        == "Its text is AR's, token for token, on every prompt. 5 of 12 answers are right, AR's 5."
    )
    assert said.lines["On"] == "bfloat16, greedy, at most 64 new tokens, one sequence at a time."
    assert [(mark.name, mark.text, mark.tone) for mark in said.marks] == [("▼ jf", "0.50×", "bad")]
    assert [*said.links] == ["tables and pictures"], "without step times there is no race"


@pytest.mark.parametrize(
    ("speeds", "tone", "claim"),
    [
        ({"jf": 0.5, "pld": 0.75}, "bad", "`pld` is the fastest of these methods, and slower than plain decoding"),
        ({"pld": 1.0}, "", "`pld` is the fastest row, and no difference from AR is shown"),
    ],
)
def test_no_winner_is_none(tmp_path: Path, speeds: dict[str, float], tone: str, claim: str) -> None:
    said = finding(made(tmp_path, speeds))
    assert (said.tone, said.claim) == (tone, claim)


def test_too_few_prompts_are_no_win(tmp_path: Path) -> None:
    said = finding(made(tmp_path, {"pld": 2.0}, prompts=4))
    assert (said.figure, said.tone) == ("2.00×", "")
    assert said.lines["How sure"] == "No interval: too few for one (4 prompts)."


def test_a_disturbed_run_has_no_figure(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})
    disturbed = Disturbed(reasons=["other processes took 40% of a core"])
    run = replace(run, summary=run.summary.model_copy(update={"disturbed": disturbed}))
    said = finding(run)
    assert (said.figure, said.tone) == ("unsure", "faint")
    assert "other processes took 40% of a core" in said.claim


def test_lossy_text_without_a_score_has_no_figure(tmp_path: Path) -> None:
    assert finding(made(tmp_path / "a", {"pld": 2.0}, lossless=LOSSY)).figure == "–"
    said = finding(made(tmp_path / "b", {"pld": 2.0}, lossless=LOSSY, right=lambda one: True))
    assert said.figure == "2.00×"
    assert "Its text leaves AR's on 3 of 8 prompts, beyond numeric ties." in said.lines["How right"]


def test_of_each_kind_the_run_with_most_prompts_then_the_latest(tmp_path: Path) -> None:
    few = made(tmp_path, {"pld": 2.0}, prompts=8, created="2026-01-05T00:00:00+00:00")
    early, late = (made(tmp_path, {"pld": 1.5}, created=f"2026-01-0{day}T00:00:00+00:00") for day in (2, 3))
    unfinished = made(tmp_path, {"pld": 1.5}, prompts=16, finish=False, created="2026-01-06T00:00:00+00:00")
    other = replace(early, config=early.config.model_copy(update={"concurrency": 4}))

    def ids(runs: Sequence[Run]) -> list[str]:
        return [run.id for run in pictured(Gathered(runs))]

    assert ids([few, early, late, unfinished]) == [late.id]
    assert ids([late, early]) == [early.id], "of equal ones the last of them, as they come in order of time"
    assert ids([few, other]) == [other.id, few.id]


def test_the_race_is_of_the_winner_and_linked(tmp_path: Path) -> None:
    found = gather([races.run(tmp_path, prompts=9)])
    (run,) = found.runs
    pages = races_of(found)
    assert [page.name for page in pages.values()] == [f"{run.id}.html"]
    assert finding(run).links["watch the race"] == f"report_races/{run.id}.html"
    assert "<h2>pld</h2>" in pages[run.id].content
    assert "<h2>ar</h2>" in pages[run.id].content


def test_the_token_view_opens_on_the_method_that_gained(tmp_path: Path) -> None:
    (run,) = gather([races.run(tmp_path, prompts=9)]).runs
    shown = {**run.pictured, "jf": run.pictured["pld"]}
    run = replace(run, pictured={"jf": shown["jf"], "pld": shown["pld"]})
    assert [(trace.title.split()[0], trace.open) for trace in traces(run)] == [("pld", True), ("jf", False)]
