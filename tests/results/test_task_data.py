"""The data files of a run's task: recorded, no part of what names the run, and those that nobody knows are told of."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support import runs
from support.models import prepared
from support.wording import wording

from specbench.common import Prompt
from specbench.common.errors import UsageError
from specbench.evals import data, scoring
from specbench.report.gathering import gather
from specbench.report.page.build import build
from specbench.report.page.sweeps import sweep_section
from specbench.report.page.write import to_html, to_markdown
from specbench.report.terminal.run import headline
from specbench.results.read import ReadRun
from specbench.results.schema import RunConfig, TaskData, TaskSpec
from specbench.results.summary import summarise
from specbench.sweeps.table import ReadSweep

KNOWN = TaskData(name="known.jsonl", sha256="a" * 64, bytes=10, revision=None, verified=True)
UNKNOWN = TaskData(name="aime25.jsonl", sha256="b" * 64, bytes=20, revision="c" * 40, verified=False)
HOSTILE = UNKNOWN.model_copy(update={"name": "<img src=x>[bold]\x1b[2J\n\u202e|"})


def config(*files: TaskData) -> RunConfig:
    made = runs.run_config(["jf"], 8)
    return made.model_copy(update={"task": made.task.model_copy(update={"data": [*files]})})


def test_data_are_no_part_of_the_digest_and_absent_where_there_are_none() -> None:
    assert config(KNOWN, UNKNOWN).digest() == config().digest()
    assert "data" not in config().model_dump(mode="json")["task"]
    assert config(UNKNOWN).model_dump(mode="json")["task"]["data"] == [
        {"name": "aime25.jsonl", "sha256": "b" * 64, "bytes": 20, "revision": "c" * 40, "verified": False}
    ]
    for made in (config(), config(KNOWN, UNKNOWN)):
        assert RunConfig.model_validate_json(made.model_dump_json()) == made


def test_what_a_task_reads_is_recorded_when_it_is_made_and_when_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import models

    files = [
        data.DataFile.model_validate({"name": name, "licence": "MIT", "source": "https://example.org"})
        for name in ("made.jsonl", "asked.jsonl")
    ]
    for file in files:
        (tmp_path / file.name).write_text(f'{{"file": "{file.name}"}}\n')
    plan = models.TaskPlan

    def reading(card: Any, options: Any, module: Any, data_dir: Path | None) -> Any:
        class Task(module.Task):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                data.resolve(files[0], tmp_path)

            def prompts(self, chat: bool) -> Any:
                data.resolve(files[1], tmp_path)
                return super().prompts(chat)

        module.Task = Task
        return plan(card, options, module, data_dir)

    monkeypatch.setattr(models, "TaskPlan", reading)
    spec = prepared([Prompt("line", "Once", False)]).spec
    for file, found in zip(files, spec.data, strict=True):
        content = (tmp_path / file.name).read_bytes()
        assert (found.name, found.bytes) == (file.name, len(content))
        assert (found.sha256, found.verified) == (hashlib.sha256(content).hexdigest(), False)


def shown(made: RunConfig) -> str:
    records = runs.answers("ar", 8, decode_s=1) + runs.answers("jf", 8, decode_s=0.5)
    console = Console(file=io.StringIO(), width=400, color_system=None)
    run = {**made.model_dump(mode="json"), "environment": runs.ENVIRONMENT}
    console.print(headline(run, summarise(made, records)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_show_says_what_is_unverified() -> None:
    assert f"{'b' * 64}" in shown(config(KNOWN, UNKNOWN))
    assert "unverified" not in shown(config(KNOWN))
    said = shown(config(HOSTILE))
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_the_report_says_what_is_unverified_in_notes_and_environment(tmp_path: Path) -> None:
    records = runs.answers("ar", 8, decode_s=1) + runs.answers("jf", 8, decode_s=0.5)
    for files, count in (((KNOWN, UNKNOWN), 2), ((KNOWN,), 0), ((HOSTILE,), 2)):
        out = tmp_path / str(count) / str(len(files))
        runs.folder(out, config(*files), records)
        document = build(gather([out]))
        page, text = to_html(document), to_markdown(document, "pictures")
        for made in (page, text):
            assert made.count("data unverified: ") == count
            assert made.count("b" * 64) == count
            assert ("c" * 40 in made) == bool(count)
            assert ("known.jsonl, sha256 aaaaaaaaaaaa" in made) == (KNOWN in files)
            assert "\x1b" not in made
            assert "\u202e" not in made
        assert "<img src=x>" not in page


def test_the_page_of_a_sweep_says_what_is_unverified() -> None:
    cells = pd.concat(
        [runs.measured_grid(speedup=1.5, set="tuning"), runs.cells([{"method": "ar", "set": "tuning"}])],
        ignore_index=True,
    )
    for files, said in (((KNOWN, UNKNOWN), True), ((KNOWN,), False)):
        made = config(*files)
        read = ReadRun({"environment": runs.ENVIRONMENT}, made, [], {}, summarise(made, []), [])
        section = sweep_section("a-sweep", ReadSweep(Path("a-sweep"), {"concurrency": [1]}, {1: read}, cells))
        assert section.under.endswith(f"data unverified: aime25.jsonl, sha256 {'b' * 64}") == said


# -------------------------------------------------------------------------------------------------------- the scorer


def scored(folder: Path, *files: Any) -> Path:
    folder.mkdir()
    task = {"name": "humaneval", "version": 1, "options": {"style": "completion", "tests": "base"}, "data": [*files]}
    (folder / "run.json").write_text(json.dumps({"schema_version": 2, "task": task}))
    (folder / "requests.jsonl").write_text("")
    return folder


def test_a_run_is_scored_by_the_data_that_it_was_asked_from() -> None:
    other = UNKNOWN.model_copy(update={"sha256": "d" * 64})
    renamed = other.model_copy(update={"name": "aime25.parquet"})
    scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN, UNKNOWN.name: UNKNOWN})
    scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN})  # what is read later cannot be told of yet
    scoring._check_same([UNKNOWN], {renamed.name: renamed.model_copy(update={"sha256": UNKNOWN.sha256})})
    scoring._check_same([], {UNKNOWN.name: UNKNOWN})
    scoring._check_same([UNKNOWN, renamed], {UNKNOWN.name: UNKNOWN})  # of two the second is read later
    for found in (other, renamed):
        with pytest.raises(UsageError, check=wording):
            scoring._check_same([KNOWN, UNKNOWN], {KNOWN.name: KNOWN, found.name: found})


@pytest.mark.parametrize("file", [[1], {"name": "x"}])
def test_a_damaged_record_of_data_is_named(tmp_path: Path, file: Any) -> None:
    with pytest.raises(UsageError, check=wording):
        scoring.score_run(scored(tmp_path / "run", file))


def test_an_existing_task_records_its_file() -> None:
    from specbench.runner.tasks import plan_tasks

    (task,) = plan_tasks(["humaneval"], ["humaneval.tests=base"])
    (found,) = task.data.values()
    assert (found.name, found.verified) == ("HumanEval.jsonl.gz", True)
    assert TaskSpec(name="t", version=1, options={}, prompts=1, prompts_sha256="0", data=[found]).unverified == ""
