"""``show --race`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return runs.race_run(tmp_path)


def test_in_a_pipe(cli: Any, run: Path) -> None:
    said = cli.ok("show", run, "--race", "ar,pld")
    assert "p/0 · 7.50 s" in said.out
    assert wording(said.out)


def test_as_json_and_as_a_page(cli: Any, run: Path, tmp_path: Path) -> None:
    data = json.loads(cli.ok("show", run, "--race", "ar,pld", "--request", "p/2", "--json").out)
    assert (data["prompt"], [lane["end_s"] for lane in data["lanes"]]) == ("p/2", [7.5, 2.5])
    page = tmp_path / "new" / "race.html"
    assert cli.ok("show", run, "--race", "ar,pld", "--out", page).out.strip() == str(page)
    assert "7.50 s" in page.read_text()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--race", "ar"), "a race takes 2 to 4 different methods of the run"),
        (("--race", "ar,pld", "--out", "race.avi"), "--out of a race ends in .html, .gif or .mp4, not 'race.avi'"),
        (("--race", "ar,pld", "--speed", 0), "--speed is from 0.01 to 1000"),
        (("--race", "ar,pld", "--speed", "nan"), "--speed is from 0.01 to 1000"),
        (("--speed", 2), "--speed goes with --race A,B"),
        (("--race", "ar,pld", "--request", "p/0", "--method", "ar"), "--race names its methods; leave --method out"),
        (("--race", "ar,pld", "--requests"), "--requests lists all of them; leave it out"),
        (("--race", "ar,pld", "--json", "--out", "a.html"), "--json prints and --out writes a file"),
        (("--race", "ar,pld", "--out", "a" * 300 + ".html"), "File name too long"),
    ],
)
def test_what_cannot_be(cli: Any, run: Path, argv: tuple[Any, ...], says: str) -> None:
    assert says in cli.refused(3 if "too long" in says else 2, "show", run, *argv)


def test_an_unfinished_run_says_so(cli: Any, run: Path, tmp_path: Path) -> None:
    (run / "DONE").unlink()
    assert wording(cli.ok("show", run, "--race", "ar,pld").out)
    page = tmp_path / "race.html"
    cli.ok("show", run, "--race", "ar,pld", "--out", page)
    assert "NOT COMPLETE" in page.read_text()


@pytest.mark.parametrize("argv", [(), ("--requests",), ("--race", "ar,[/x][red]m"), ("--request", "[/p]")])
def test_what_looks_like_markup_is_text(cli: Any, tmp_path: Path, argv: tuple[str, ...]) -> None:
    path = runs.race_run(tmp_path, 9)
    for name in ("run.json", "requests.jsonl", "summary.json"):
        text = (path / name).read_text().replace('"pld"', '"[/x][red]m"').replace("pld|", "[/x][red]m|")
        (path / name).write_text(text.replace("p/0", "[/p]"))
    assert "[/x][red]m" in cli.ok("show", path, *argv).out


def test_an_id_or_a_label_moves_no_colours(cli: Any, run: Path) -> None:
    requests = run / "requests.jsonl"
    requests.write_text(requests.read_text().replace("p/0", "p\\u001b[31m\\u202e"))
    shown = cli.ok("show", run, "--requests").out
    assert not {"\x1b", "\u202e"} & {*shown}
    content = run / "run.json"
    content.write_text(content.read_text().replace('"pld"', '"p\\u001b[31m"'))
    assert wording(cli.refused(2, "show", run))
