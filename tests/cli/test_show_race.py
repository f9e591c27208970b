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
    result = cli.ok("show", run, "--race", "ar,pld")
    assert "p/0 · 7.50 s" in result.out
    assert wording(result.out)


def test_as_json_and_as_a_page(cli: Any, run: Path, tmp_path: Path) -> None:
    data = json.loads(cli.ok("show", run, "--race", "ar,pld", "--request", "p/2", "--json").out)
    assert (data["prompt"], [lane["end_s"] for lane in data["lanes"]]) == ("p/2", [7.5, 2.5])
    page = tmp_path / "new" / "race.html"
    assert cli.ok("show", run, "--race", "ar,pld", "--out", page).out.strip() == str(page)
    assert "7.50 s" in page.read_text()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--race", "ar,pld", "--out", "race.avi"), "--out of a race ends in .html, .gif or .mp4, not 'race.avi'"),
        (("--race", "ar,pld", "--speed", 0), "--speed is from 0.01 to 1000"),
        (("--speed", 2), "--speed goes with --race A,B"),
        (("--race", "ar,pld", "--request", "p/0", "--method", "ar"), "--race names its methods; leave --method out"),
        (("--race", "ar,pld", "--requests"), "--requests lists all of them; leave it out"),
        (("--race", "ar,pld", "--json", "--out", "a.html"), "--json prints and --out writes a file"),
        (("--race", "ar,pld", "--out", "a" * 300 + ".html"), "File name too long"),
    ],
)
def test_what_cannot_be(cli: Any, run: Path, argv: tuple[Any, ...], says: str) -> None:
    assert wording(cli.refused(3 if "too long" in says else 2, "show", run, *argv))
