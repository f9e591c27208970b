"""The first page for people: which runs it speaks of, and that it claims no more than their tables do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.asserting import known
from support.runs import EXACT, LOSSY, answers, folder, race_run, run_config
from support.wording import wording

from specbench.report.gathering import Gathered, Run, gather, read_whole_run
from specbench.report.page import findings
from specbench.report.page.best import as_good
from specbench.report.page.build import build
from specbench.report.page.document import Finding, Findings
from specbench.report.page.findings import in_short, pictured, races_of
from specbench.report.page.run import traces
from specbench.report.page.write import write_report
from specbench.report.race import Race, race
from specbench.results.read import read_run
from specbench.results.schema import Draft, RequestRecord, RunConfig, TaskData
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
    assert wording(said.claim)


def test_lossy_text_without_a_score_has_no_figure(tmp_path: Path) -> None:
    assert finding(made(tmp_path / "a", {"pld": 2.0}, lossless=LOSSY)).figure == "–"
    said = finding(made(tmp_path / "b", {"pld": 2.0}, lossless=LOSSY, right=lambda one: True))
    assert said.figure == "2.00×"
    assert wording(said.lines["How right"])


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


def test_the_token_view_opens_on_the_method_that_gained(tmp_path: Path) -> None:
    (run,) = gather([race_run(tmp_path, prompts=9)]).runs
    shown = {**run.pictured, "jf": run.pictured["pld"]}
    run = replace(run, pictured={"jf": shown["jf"], "pld": shown["pld"]})
    assert [(trace.title.split()[0], trace.open) for trace in traces(run)] == [("pld", True), ("jf", False)]


def test_prompts_are_those_that_were_answered(tmp_path: Path) -> None:
    """An unfinished run is not on all the prompts that it was to have."""
    records = [*answers("ar", 9, decode_s=1.0), *answers("pld", 7, decode_s=0.5, target_forwards=12)]
    path = folder(tmp_path, run_config(["pld"], 164), records, finish=False)
    said = finding(read_whole_run(path))
    assert said.lines["How sure"].startswith("2.00 to 2.00 with 95% confidence, on 7 of 164 prompts.")
    assert said.lines["On"].endswith("NOT COMPLETE.")


def test_sequences_stepped_together_are_counted_in_blocks(tmp_path: Path) -> None:
    records = [*answers("ar", 24, decode_s=1.0), *answers("pld", 24, decode_s=0.5, target_forwards=12)]
    path = folder(tmp_path, run_config(["pld"], 24, concurrency=4), records)
    run = read_whole_run(path)
    blocks = next(row.speedup.blocks for row in run.rows if row.method == "pld" and row.speedup)
    assert finding(run).lines["How sure"].startswith("No interval: too few for one (24 prompts, stepped together in")
    assert f" {blocks} block" in finding(run).lines["How sure"]


def test_a_faster_row_that_is_less_often_right_is_no_win(tmp_path: Path) -> None:
    said = finding(made(tmp_path, {"pld": 2.0}, lossless=LOSSY, right=lambda one: one.method == "ar"))
    assert said.tone == ""
    assert said.claim == "`pld` is faster than plain decoding, and fewer of its answers are right"


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


def test_unverified_data_are_said_where_the_figure_is(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})
    file = TaskData(name="own.jsonl", sha256="a" * 64, bytes=1, revision=None, verified=False)
    task = run.config.task.model_copy(update={"data": [file]})
    run = replace(run, config=run.config.model_copy(update={"task": task}))
    assert wording(finding(run).lines["On"])


def test_a_folder_of_any_name_has_a_page_that_its_link_reaches(tmp_path: Path) -> None:
    """Its id is part of file names: none of another folder, none too long, and no two alike."""
    names = ["a b#1?%20", "a b#1?%21", "x" * 250, '"><script>']
    for number, name in enumerate(names):
        model = run_config([], 9).model.model_copy(update={"name": f"m{number}"})
        path = race_run(tmp_path / str(number), prompts=9, model=model)
        content = {**json.loads((path / "run.json").read_text()), "digest": "../../x"}
        if number:  # then it is known by its folder's name
            del content["digest"]
        (path / "run.json").write_text(json.dumps(content))
        path.rename(path.parent / name)
    found = gather([tmp_path])
    assert len({run.id for run in found.runs}) == len(names) == len(found.runs)
    out = tmp_path / "out"
    page = write_report(build(found), out)
    links = re.findall(r'href="(report_races/[^"]*)"', page.read_text())
    assert len({*links}) == len(names)
    assert all(re.fullmatch(r"[\w./-]+", link) and (out / link).is_file() for link in links)
    assert not [path for path in tmp_path.rglob("*.svg") if out not in path.parents]


def test_runs_that_compare_nothing_are_no_findings(tmp_path: Path) -> None:
    alone, lot = run_config([], 9), run_config(["jf"], 9, lot=["jf"])
    plain = answers("ar", 9, decode_s=1.0)
    paths = [
        folder(tmp_path, alone, plain),
        folder(tmp_path, lot, [*plain, *answers("jf", 9, decode_s=0.5)]),
    ]
    found = Gathered([read_whole_run(path) for path in paths])
    assert pictured(found) == []
    assert build(found).sections[0].title == "At a glance"


def test_a_race_keeps_no_trees_of_all_the_answers_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report takes little memory whatever its runs traced, and the race is the same."""
    (run,) = gather([race_run(tmp_path, prompts=9)]).runs
    plain = races_of(Gathered([run]))[run.id].content
    draft = Draft(ids=[1, 2, 3, 4], parents=None, origins="cccc", draft_only=[], path=[])
    seen: list[Any] = []

    def traced(*_: object) -> Iterator[RequestRecord]:
        for one in read_run(run.path).records:
            assert one.tokens
            rows = {"drafts": [draft] * one.target_forwards, "pieces": {}}
            yield one.model_copy(update={"tokens": one.tokens.model_copy(update=rows)})

    def watched(config: RunConfig, records: Sequence[RequestRecord], *more: Any) -> Race:
        seen.extend(record.tokens.drafts for record in records if record.tokens)
        return race(config, records, *more)

    monkeypatch.setattr(findings, "whole_records", traced)
    monkeypatch.setattr(findings, "race", watched)
    assert races_of(Gathered([run]))[run.id].content == plain
    assert seen == [None] * 18


def test_of_more_kinds_than_are_shown_the_number_is_said(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})

    def of(count: int) -> Findings:
        tasks = [run.config.task.model_copy(update={"name": f"t{at}"}) for at in range(count)]
        runs = [
            replace(run, id=f"{at}", config=run.config.model_copy(update={"task": t})) for at, t in enumerate(tasks)
        ]
        (block,) = in_short(Gathered(runs), {}).blocks
        assert isinstance(block, Findings)
        return block

    assert "such runs" not in of(8).source.formula
    assert len(of(9).findings) == 8
    assert of(9).source.formula.endswith("Of 9 such runs 8 are shown.")


def test_a_fine_tuned_models_row_is_told_over_its_base_too(tmp_path: Path) -> None:
    config = run_config(["ar@base", "jf"], 9)
    config = config.model_copy(update={"base": config.model.model_copy(update={"name": "the base"})})
    seconds = {"ar": 1.0, "ar@base": 0.75, "jf": 0.5}
    records = [one for label, took in seconds.items() for one in answers(label, 9, decode_s=took)]
    said = finding(read_whole_run(folder(tmp_path, config, records)))
    assert (said.figure, said.claim) == ("2.00×", "`jf` is faster than plain decoding")
    assert said.lines["Over base"] == "1.50×, 1.50 to 1.50, over plain decoding of the base."
    assert "Over base" not in finding(made(tmp_path / "b", {"jf": 2.0})).lines


@pytest.mark.parametrize(
    ("others", "says"),
    [(["jf"], "The other row is not as good as pld."), (["jf", "cllm"], "None of the 2 other rows is as good as pld.")],
)
def test_what_is_not_as_good_is_counted(others: list[str], says: str, tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 1.5, **dict.fromkeys(others, 0.5)})
    alone = known(run.summary.fastest).model_copy(update={"method": "pld", "as_good": ["pld"], "told_apart": True})
    run = replace(run, summary=run.summary.model_copy(update={"fastest": alone}))
    assert as_good(run, next(row for row in run.rows if row.method == "pld")) == says


def test_of_no_answer_nothing_is_exact(tmp_path: Path) -> None:
    said = finding(made(tmp_path, {"pld": 2.0}, lossless={**EXACT, "exact": 0}))
    assert said.lines["How right"].startswith("Whether its text is AR's was not checked.")


def test_sessions_stand_for_no_single_problems(tmp_path: Path) -> None:
    single = made(tmp_path, {"pld": 1.5})
    chained = single.config.task.model_copy(update={"options": {"chain": 4}})
    sessions = replace(single, id="sessions", config=single.config.model_copy(update={"task": chained}))
    assert {run.id for run in pictured(Gathered([single, sessions]))} == {single.id, "sessions"}
    assert wording(finding(sessions).lines["On"])
    assert finding(sessions).lines["How sure"].startswith("1.50 to 1.50 with 95% confidence, on 12 sessions.")
    assert "sessions" not in " ".join(finding(single).lines.values())
