"""The first page for people: which runs it speaks of, and that it claims no more than their tables do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, LOSSY, answers, folder, race_run, run_config
from support.wording import wording

from specbench.report.document import Finding, Findings
from specbench.report.gathering import Gathered, Run, gather, read_whole_run
from specbench.report.page.findings import in_short, pictured, races_of
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
    path = folder(out, run_config([*speeds], prompts), records, lossless=graded, right=right, **more)
    return read_whole_run(path)


def test_a_winner(tmp_path: Path) -> None:
    result = finding(made(tmp_path, {"pld": 1.5, "jf": 0.5}, right=lambda one: one.prompt_id < "p/3"))
    assert (result.figure, result.tone, result.claim) == ("1.50×", "good", "`pld` is faster than plain decoding")
    assert result.on == "humaneval · config:qwen3-8b · NVIDIA A100-SXM4-80GB"
    assert result.lines["How sure"].startswith("1.50 to 1.50 with 95% confidence, on 12 prompts.")
    assert "jf" in result.lines["How sure"], "whether it may be the best, too"
    assert wording(result.lines["How right"])
    assert wording(result.lines["On"])
    assert [(mark.name, mark.text, mark.tone) for mark in result.marks] == [("▼ jf", "0.50×", "bad")]
    assert [*result.links] == ["tables and pictures"], "without step times there is no race"


@pytest.mark.parametrize(
    ("speeds", "tone", "claim"),
    [
        (
            {"jf": 0.5, "pld": 0.75},
            "bad",
            "`pld` has the highest speed of these methods, and is slower than plain decoding",
        ),
        (
            {"pld": 1.0},
            "",
            "`pld` has the highest speed of these methods, and no difference from plain decoding is shown",
        ),
    ],
)
def test_no_winner_is_none(tmp_path: Path, speeds: dict[str, float], tone: str, claim: str) -> None:
    result = finding(made(tmp_path, speeds))
    assert (result.tone, result.claim) == (tone, claim)


def test_too_few_prompts_are_no_win(tmp_path: Path) -> None:
    result = finding(made(tmp_path, {"pld": 2.0}, prompts=4))
    assert (result.figure, result.tone) == ("2.00×", "")
    assert wording(result.lines["How sure"])


def test_what_only_the_joint_interval_says_is_said(tmp_path: Path) -> None:
    """Alone pld's interval excludes 1; of two rows, of which it is the faster, the joint one does not."""
    run = made(tmp_path, {"pld": 1.1, "jf": 0.5})
    (pld,) = (row for row in run.rows if row.method == "pld")
    assert pld.speedup
    assert pld.speedup.among
    close = {"low": 1.03, "high": 1.2, "verdict": "no difference shown"}
    for low, high, said in ((0.97, 1.27, True), (1.01, 1.25, False)):
        among = pld.speedup.among.model_copy(update={"low": low, "high": high})
        speedup = pld.speedup.model_copy(update={**close, "among": among})
        rows = [row.model_copy(update={"speedup": speedup}) if row is pld else row for row in run.rows]
        changed = replace(run, summary=run.summary.model_copy(update={"rows": rows}))
        assert ("Jointly for all 2 rows 0.97 to 1.27" in finding(changed).lines["How sure"]) == said


def test_a_disturbed_run_has_no_figure(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})
    disturbed = Disturbed(reasons=["other processes took 40% of a core"])
    run = replace(run, summary=run.summary.model_copy(update={"disturbed": disturbed}))
    result = finding(run)
    assert (result.figure, result.tone) == ("unsure", "faint")
    assert wording(result.claim)


def test_lossy_text_without_a_score_has_no_figure(tmp_path: Path) -> None:
    assert finding(made(tmp_path / "a", {"pld": 2.0}, lossless=LOSSY)).figure == "–"
    result = finding(made(tmp_path / "b", {"pld": 2.0}, lossless=LOSSY, right=lambda one: True))
    assert result.figure == "2.00×"
    assert wording(result.lines["How right"])


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
    found = gather([race_run(tmp_path, prompts=9)])
    (run,) = found.runs
    pages = races_of(found)
    assert [page.name for page in pages.values()] == [f"{run.id}.html"]
    assert finding(run).links["watch the race"] == f"report_races/{run.id}.html"
    assert "<h2>pld</h2>" in pages[run.id].content
    assert "<h2>ar</h2>" in pages[run.id].content


def test_sequences_stepped_together_are_counted_in_blocks(tmp_path: Path) -> None:
    records = [*answers("ar", 24, decode_s=1.0), *answers("pld", 24, decode_s=0.5, target_forwards=12)]
    path = folder(tmp_path, run_config(["pld"], 24, concurrency=4), records)
    run = read_whole_run(path)
    blocks = next(row.speedup.blocks for row in run.rows if row.method == "pld" and row.speedup)
    assert finding(run).lines["How sure"].startswith("No interval: too few for one (24 prompts, stepped together in")
    assert f" {blocks} block" in finding(run).lines["How sure"]


def test_a_faster_row_that_is_less_often_right_is_no_win(tmp_path: Path) -> None:
    result = finding(made(tmp_path, {"pld": 2.0}, lossless=LOSSY, right=lambda one: one.method == "ar"))
    assert result.tone == ""
    assert wording(result.claim)


def test_dummy_weights_samples_and_traces_stand_for_nothing_else(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})
    config = run.config
    others: dict[str, dict[str, Any]] = {
        "dummy": {"model": config.model.model_copy(update={"dummy": True})},
        "warm": {"sampling": config.sampling.model_copy(update={"temperature": 1.0})},
        "traced": {"trace": True, "task": config.task.model_copy(update={"prompts": 99})},
    }
    runs = [replace(run, id=name, config=config.model_copy(update=changes)) for name, changes in others.items()]
    assert {each.id for each in pictured(Gathered([run, *runs]))} == {run.id, "dummy", "warm"}


def test_a_fine_tuned_models_row_is_compared_with_its_base_too(tmp_path: Path) -> None:
    config = run_config(["ar@base", "jf"], 9)
    config = config.model_copy(update={"base": config.model.model_copy(update={"name": "the base"})})
    seconds = {"ar": 1.0, "ar@base": 0.75, "jf": 0.5}
    records = [one for label, took in seconds.items() for one in answers(label, 9, decode_s=took)]
    result = finding(read_whole_run(folder(tmp_path, config, records)))
    assert (result.figure, result.claim) == ("2.00×", "`jf` is faster than plain decoding")
    assert wording(result.lines["Over base"])
    assert "Over base" not in finding(made(tmp_path / "b", {"jf": 2.0})).lines


def test_sessions_stand_for_no_single_problems(tmp_path: Path) -> None:
    single = made(tmp_path, {"pld": 1.5})
    chained = single.config.task.model_copy(update={"options": {"chain": 4}})
    sessions = replace(single, id="sessions", config=single.config.model_copy(update={"task": chained}))
    assert {run.id for run in pictured(Gathered([single, sessions]))} == {single.id, "sessions"}
    assert wording(finding(sessions).lines["On"])
    assert finding(sessions).lines["How sure"].startswith("1.50 to 1.50 with 95% confidence, on 12 sessions.")
    assert "sessions" not in " ".join(finding(single).lines.values())
