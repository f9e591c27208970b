"""Runs of schema 1 from the command line: shown, exported, compared, scored and judged, and never gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import older_runs
import pytest
from support import engines
from support.runs import EXACT, answers, folder, run_config
from support.wording import wording

from specbench.evals import data

TINY = ("run", "--model", "config:tiny", "--max-new-tokens", 4, "--limit", 2, "--first")
FILES = ("run.json", "requests.jsonl", "summary.json")


def both(out: Path) -> tuple[Path, Path]:
    """The same run, of today and of schema 1."""
    records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=0.5, target_forwards=8)]
    graded = dict.fromkeys(["ar", "jf"], EXACT)
    made = folder(out / "today", run_config(["jf"], 8), records, lossless=graded, right=lambda one: True)
    return made, older_runs.make_schema_1(Path(shutil.copytree(made, out / "older" / made.name)))


def kept(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FILES if (path / name).exists()}


@pytest.mark.parametrize(
    "command", [("show",), ("show", "--requests"), ("export", "--to", "csv"), ("show", "--requests", "--json")]
)
def test_it_is_shown_as_one_of_today(cli: Any, tmp_path: Path, command: tuple[str, ...]) -> None:
    new, old = both(tmp_path)
    before = kept(old)
    mine, theirs = cli(command[0], old, *command[1:]), cli(command[0], new, *command[1:])
    assert (mine.code, theirs.code) == (0, 0), mine.err
    if "--json" in command:
        found, other = json.loads(mine.out), json.loads(theirs.out)
        assert found["run"].pop("schema_version") == 1
        assert other["run"].pop("schema_version") == 2
        assert all(row.pop("tpot_median_s") > 0 for row in other["summary"]["rows"])
        assert [row.pop("peak_memory_bytes") for row in other["summary"]["rows"]] == [None, None]
        assert found == other
    else:
        assert mine.out == theirs.out
    assert kept(old) == before


def test_it_is_reported_claimed_and_compared_as_one_of_today(cli: Any, tmp_path: Path) -> None:
    new, old = both(tmp_path)
    before = kept(old)
    pages = []
    for path in (new, old):
        out = tmp_path / f"report of {path.parent.name}"
        assert cli("report", path, "--claims", "--out", out).code == 0
        pages.append({file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()})
    assert pages[0] == pages[1]
    said = cli.ok("compare", new, old, "--json")
    row = json.loads(said.out)["rows"][1]
    assert row["decode_tok_s"][0] == row["decode_tok_s"][1]
    assert row["speedup"]["value"] == 1
    assert kept(old) == before


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of schema 1, as far as its files go."""
    return older_runs.make_schema_1(cli.made(tmp_path_factory.mktemp("runs"), *TINY, "--method", "jacobi"))


def test_it_is_scored_and_stays_what_it_is(cli: Any, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    before = kept(copy)
    (copy / "verdicts.jsonl").unlink()
    wrong = json.loads(before["summary.json"])
    wrong["rows"][1]["accuracy"] = None
    (copy / "summary.json").write_text(json.dumps(wrong))
    cli.ok("score", copy)
    assert {name: text for name, text in kept(copy).items() if name != "summary.json"} == {
        name: text for name, text in before.items() if name != "summary.json"
    }
    assert json.loads((copy / "summary.json").read_text()) == json.loads(before["summary.json"])
    assert (copy / "verdicts.jsonl").read_bytes() == (run / "verdicts.jsonl").read_bytes()


def test_it_is_judged_and_stays_so(cli: Any, task_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(task_data))
    texts = {"ar": {"81": ["A travel blog.", "Aloha."]}, "jacobi": {"81": ["A blog.", "Aloha."]}}
    path = older_runs.make_schema_1(engines.folder(tmp_path / "runs", texts))
    before = kept(path)
    cli.ok("judge", path, "--judge", "config:tiny", "--max-new-tokens", 8)
    requests = [json.loads(line)["request"] for line in (path / "judgments.jsonl").read_text().splitlines()]
    assert sorted(requests) == ["ar|81|0", "ar|81|0|2", "jacobi|81|0", "jacobi|81|0|2"]
    assert kept(path) == before


@pytest.fixture
def there(run: Path, tmp_path: Path) -> Path:
    """A run of schema 1 that this checkout's code, without changes, would have made."""
    return Path(shutil.copytree(run, tmp_path / "out" / run.name))


def test_one_that_is_finished_is_done_already(cli: Any, there: Path) -> None:
    before = kept(there)
    assert wording(cli.ok(*TINY, "--method", "jacobi", "--out", there.parent).err)
    assert list(there.parent.iterdir()) == [there]
    assert kept(there) == before


def test_one_that_was_broken_off_is_not_gone_on_with(cli: Any, there: Path) -> None:
    lines = (there / "requests.jsonl").read_text().splitlines(keepends=True)
    (there / "requests.jsonl").write_text("".join(lines[:3]))
    for name in ("DONE", "summary.json", "verdicts.jsonl"):
        (there / name).unlink()
    before = kept(there)
    error = cli.refused(2, *TINY, "--method", "jacobi", "--out", there.parent)
    assert f"{there}" in error
    assert error.endswith("choose another --out, or go on with that version")
    assert kept(there) == before
    cli.ok(*TINY, "--method", "jacobi", "--no-score", "--out", there.parent / "elsewhere")
