"""Runs of schema 1: read as they are, written as they were, and never mixed with today's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import older_runs
import pytest
from support import runs
from support.asserting import known
from support.runs import EXACT, answers, folder, run_config
from support.wording import wording

from specbench.common import UsageError
from specbench.results.folder import RunFolder
from specbench.results.frame import load, load_methods
from specbench.results.read import read_projections, read_run, read_whole, write_projection
from specbench.results.schema import SCHEMA_VERSION
from specbench.results.versions import summary_json

EVERY = [*runs.EARLIER, *runs.COMMITTED, *sorted(runs.OLDER.glob("*/c*/"))]
OLDER = [path for path in EVERY if RunFolder.load(path).schema == 1]
BAND = {"value": 2.0, "low": 1.0, "high": 3.0}


def today(out: Path, finish: bool = True) -> Path:
    """A run of ar and jf on eight prompts of two categories."""
    records = [
        *answers("ar", 8, decode_s=1.0, category=lambda at: "ab"[at % 2]),
        *answers("jf", 8, decode_s=0.5, target_forwards=8, category=lambda at: "ab"[at % 2]),
    ]
    graded = dict.fromkeys(["ar", "jf"], EXACT)
    return folder(out, run_config(["jf"], 8), records, lossless=graded, finish=finish)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return older_runs.make_schema_1(today(tmp_path / "older"))


def test_the_runs_committed_until_then_are_of_schema_1() -> None:
    assert len(OLDER) >= 12
    assert {RunFolder.load(path).schema for path in EVERY if path not in OLDER} == {SCHEMA_VERSION}


@pytest.mark.parametrize("path", OLDER, ids=lambda path: f"{path.parent.name[:9]}-{path.name[:16]}")
def test_a_summary_is_written_again_as_it_was(path: Path) -> None:
    found = known(RunFolder.load(path).summary())
    content = json.loads((path / "summary.json").read_text())
    assert summary_json(found, 1) == content
    assert not older_runs.names(summary_json(found, SCHEMA_VERSION)) & {*older_runs.ROW.values()}


def test_every_name_that_is_another_is_read_under_its_new_one(older: Path, tmp_path: Path) -> None:
    new = today(tmp_path / "today")
    assert older_runs.names([json.loads(line) for line in (older / "requests.jsonl").open()]).isdisjoint(
        older_runs.REQUEST
    )
    assert read_run(older).records == read_run(new).records
    mine, theirs = read_whole(older).summary.written(), read_whole(new).summary.written()
    for row in theirs["rows"]:
        assert [row.pop(name) is not None for name in older_runs.LATER] == [False, True]
    assert mine == theirs
    assert set(mine["rows"][1]["groups"]) == {"a", "b", "overall"}


def test_tables_of_both_have_the_same_columns(older: Path, tmp_path: Path) -> None:
    new = today(tmp_path / "today")
    assert load(older).equals(load(new))
    frame, other = load_methods(older), load_methods(new)
    assert list(frame.columns) == list(other.columns)
    assert frame["tpot_median_s"].isna().all()
    same = [name for name in frame if name != "tpot_median_s"]
    assert frame[same].equals(other[same])


def renamed(content: dict[str, Any], new: str, old: str) -> dict[str, Any]:
    return {old if name == new else name: value for name, value in content.items()}


def test_an_old_name_in_a_record_or_a_summary_of_today_is_damage(tmp_path: Path) -> None:
    run = today(tmp_path)
    first, *others = (run / "requests.jsonl").read_text().splitlines()
    for new, old in older_runs.REQUEST.items():
        written = [json.dumps(renamed(json.loads(first), new, old)), *others, ""]
        (run / "requests.jsonl").write_text("\n".join(written))
        with pytest.raises(UsageError, check=wording):
            list(RunFolder.load(run).records())
    content = json.loads((run / "summary.json").read_text())
    for new, old in older_runs.ROW.items():
        rows = [content["rows"][0], renamed(content["rows"][1], new, old)]
        (run / "summary.json").write_text(json.dumps({**content, "rows": rows}))
        with pytest.raises(UsageError, check=wording):
            RunFolder.load(run).summary()


def test_a_name_of_today_in_a_record_of_schema_1_is_damage_as_is_what_is_no_record(older: Path) -> None:
    first, *others = (older / "requests.jsonl").read_text().splitlines()
    for new, old in older_runs.REQUEST.items():
        line = json.loads(first)
        line[new] = line[old]
        (older / "requests.jsonl").write_text("\n".join([json.dumps(line), *others, ""]))
        for read in (RunFolder.load(older).records, RunFolder.load(older).lines):
            with pytest.raises(UsageError, check=wording):
                list(read())
    for text in ("[1]", "3", "nonsense"):
        (older / "requests.jsonl").write_text(f"{text}\n")
        with pytest.raises(UsageError, check=wording):
            list(RunFolder.load(older).records())


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (True, "is True"), ("1", "is '1'"), (1.0, "is 1.0"), (0, "is 0"), (-1, "is -1"), (None, ""),
        ([1], r"is \[1\]"), (SCHEMA_VERSION + 1, f"newer specbench .schema {SCHEMA_VERSION + 1}"),
    ],
)  # fmt: skip
def test_a_version_is_a_whole_number_that_is_known(older: Path, version: Any, said: str) -> None:
    run = json.loads((older / "run.json").read_text())
    (older / "run.json").write_text(json.dumps({**run, "schema_version": version}))
    with pytest.raises(UsageError, check=wording) as caught:
        RunFolder.load(older)
    assert "\n" not in str(caught.value)


def test_projections_have_the_names_of_their_run(older: Path, tmp_path: Path) -> None:
    content = {"schema_version": 1, "gpu": "b200", "device": "a CPU", "rows": {"ar": {"decode_tok_s": BAND}}}
    for path, name in ((older, "tok_s"), (today(tmp_path / "today"), "decode_tok_s")):
        write_projection(RunFolder.load(path), "b200", content)
        assert set(json.loads((path / "projection-b200.json").read_text())["rows"]["ar"]) == {name}
        assert read_projections(RunFolder.load(path)) == [content]


def test_a_summary_of_a_run_of_schema_1_is_written_with_its_names(older: Path) -> None:
    before = (older / "summary.json").read_text()
    with RunFolder.reopen(older) as opened:
        found = known(opened.summary())
        rows = [row.model_copy(update={"tpot_median_s": 0.5, "peak_memory_bytes": 7}) for row in found.rows]
        opened.write_summary(found.model_copy(update={"rows": rows}))
    assert json.loads((older / "summary.json").read_text()) == json.loads(before)


def test_a_run_of_schema_1_gets_no_requests(tmp_path: Path) -> None:
    path = older_runs.make_schema_1(today(tmp_path, finish=False))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    digest = json.loads(before["run.json"])["digest"]
    said = (
        f"^{path} is of schema 1, written by specbench 0.1.0 .commit 0123456789ab., and this version writes schema 2; "
        "choose another --out, or go on with that version$"
    )
    with pytest.raises(UsageError, match=said):
        RunFolder.find_unfinished(tmp_path, digest)
    with RunFolder.at(path, digest, {}) as opened:
        finished = read_run(path).summary
        for write in (lambda: opened.log, lambda: opened.go_on({}), lambda: opened.finish(finished)):
            with pytest.raises(UsageError, check=wording):
                write()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_finished_run_of_schema_1_is_found_as_one(older: Path) -> None:
    digest = json.loads((older / "run.json").read_text())["digest"]
    found = known(RunFolder.find_finished(older.parent, digest))
    assert found.path == older
