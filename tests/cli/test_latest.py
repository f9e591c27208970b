"""``latest`` instead of a folder's name: the newest of what runs, sweeps and profiles left here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import runs

NEWEST = "20270103T000000Z-new"
SWEEP = runs.PIECES["crossing"].name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a run of 2027 in the way of this version and an older one in that of the last."""
    monkeypatch.chdir(tmp_path)
    runs.derived(tmp_path / "results" / NEWEST)
    shutil.copytree(tmp_path / "results" / NEWEST, tmp_path / "runs" / "20270102T000000Z-zebra")
    return tmp_path


def named(result: Any) -> str:
    (line,) = [line for line in result.err.splitlines() if line.startswith("latest: ")]
    return str(line.removeprefix("latest: "))


def test_the_newest_by_the_time_in_its_name_is_shown_and_named(cli: Any, here: Path) -> None:
    result = cli.ok("show", "latest")
    assert result.err == f"latest: results/{NEWEST}\n"
    assert result.out == cli("show", f"results/{NEWEST}").out


def unfinished(here: Path) -> Path:
    path = shutil.copytree(here / "results" / NEWEST, here / "results" / "20270105T000000Z-ar")
    (path / "DONE").unlink()
    (path / "summary.json").unlink()
    return path


def deeper(here: Path) -> Path:
    return shutil.copytree(here / "results" / NEWEST, here / "results" / "august" / "20270106T000000Z-ar")


def sweep(here: Path) -> Path:
    """Its name has no time, so that of its newest run counts."""
    path = here / "results" / SWEEP
    shutil.copytree(runs.RESULTS / path.name, path)
    for number, created in ((1, "2026-01-01T00:00:00+00:00"), (4, "2027-01-07T00:00:00+00:00")):
        file = path / f"c{number}" / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "created_utc": created}))
    return path


@pytest.mark.parametrize("make", [unfinished, deeper, sweep], ids=lambda make: make.__name__)
def test_what_is_newer_is_found_wherever_it_lies(cli: Any, here: Path, make: Callable[[Path], Path]) -> None:
    path = make(here)
    result = cli.ok("show", "latest")
    assert named(result) == str(path.relative_to(here))


def test_a_profile_counts_and_a_sweep_of_older_runs_does_not(cli: Any, here: Path) -> None:
    shutil.copytree(runs.RESULTS / SWEEP, here / "results" / "sweep-pld")
    assert named(cli("show", "latest")) == f"results/{NEWEST}"
    profile = here / "profiles" / "20270108T000000Z-profile"
    profile.mkdir(parents=True)
    shutil.copy(next(runs.RESULTS.glob("*-profile-*")) / "profile.json", profile)
    result = cli("show", "latest")
    assert (result.code, named(result)) == (0, "profiles/20270108T000000Z-profile")


def test_drafts_of_folders_and_what_is_no_run_do_not_count(cli: Any, here: Path) -> None:
    shutil.copytree(here / "results" / NEWEST, here / "results" / ".20270109T000000Z-ar.1.tmp")
    (here / "results" / "20270109T000000Z-notes").mkdir()
    assert named(cli("show", "latest")) == f"results/{NEWEST}"


@pytest.mark.parametrize(
    "command",
    [
        ("report", "latest", "--to", "csv"),
        ("compare", "latest", "latest"), ("compare", "latest:ar", "latest:jetspec"),
        ("score", "latest", "--data-dir", "."),
        ("report", "latest", "--out", "page"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_that_reads_folders_takes_it(cli: Any, here: Path, command: tuple[str, ...]) -> None:
    result = cli(*command)
    plain = cli(*(word.replace("latest", f"results/{NEWEST}") for word in command))
    assert result.err.startswith(f"latest: results/{NEWEST}\n")
    assert (result.code, result.out) == (plain.code, plain.out)
    assert [line for line in result.err.splitlines() if not line.startswith("latest: ")] == plain.err.splitlines()


def test_none_is_an_error_that_says_where_was_looked(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = "no run, sweep or profile in results/ or profiles/ here; name its folder"
    assert cli.refused(2, "show", "latest") == f"error: {where}"


@pytest.mark.usefixtures("remembering")
def test_a_run_written_elsewhere_is_the_latest_here_and_not_in_other_folders(
    cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(here / "results")
    (here / "other").mkdir()
    tiny = ("--model", "config:tiny", "--max-new-tokens", 4, "--method", "ar", "--limit", 1, "--no-score")
    folder = cli.made(here / "elsewhere", "run", *tiny)
    assert named(cli.ok("show", "latest")) == str(folder)
    monkeypatch.chdir(here / "other")
    assert cli("show", "latest").code == 2
    monkeypatch.chdir(here)
    shutil.rmtree(folder)
    assert cli("show", "latest").code == 2, "it is gone"


def test_the_folder_of_out_stands_for_the_newest_run_in_it(cli: Any, here: Path) -> None:
    newest = f"results/{NEWEST}"
    shutil.copytree(newest, here / "results" / "20270101T000000Z-old")
    for command in (
        ("show", "results"),
        ("compare", "results:ar", "results:jetspec"),
        ("claims", "--check", "results"),
    ):
        result = cli(*command)
        plain = cli(*(word.replace("results", newest) for word in command))
        assert (result.code, result.out) == (plain.code, plain.out)
        assert f"newest in results: {newest}" in result.err
