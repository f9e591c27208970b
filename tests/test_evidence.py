"""The list of what pages quote, and the command that measures it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.wording import wording

from benchmarks import evidence
from specbench.backends import is_row
from specbench.backends.rows import make_row
from specbench.common import registry
from specbench.planning.methods import make_method

PAGE = """# Runs

| piece | command | shows | does not show | run |
| --- | --- | --- | --- | --- |
| one-a | `specbench run --method ar,ar` | this | that | – |
| one-b | `specbench run --method pld` | this | that | [x](x) 2026-01-01, `cpu` |
| two | `specbench run --method jacobi` | this | that | – |

| folder | what it shows |
"""


def made(tmp_path: Path) -> Path:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    return page


def folder(tmp_path: Path, *reasons: str) -> Path:
    place = tmp_path / "20260101T000000Z-ar-humaneval-01234567"
    place.mkdir(exist_ok=True)
    run = {"created_utc": "2026-01-01T00:00:00+00:00", "environment": {"device": {"name": "cpu"}}}
    (place / "run.json").write_text(json.dumps(run))
    (place / "summary.json").write_text(json.dumps({"disturbed": {"reasons": list(reasons)}}))
    return place


def test_what_is_not_measured_is_measured_and_linked(tmp_path: Path) -> None:
    page, asked = made(tmp_path), list[str]()

    def run(piece: evidence.Piece) -> Path:
        asked.append(piece.command)
        return folder(tmp_path)

    assert evidence.main([], lambda: True, run, page) == 0
    assert asked == ["specbench run --method ar,ar", "specbench run --method jacobi"]
    link = "[20260101T000000Z…-01234567](20260101T000000Z-ar-humaneval-01234567) 2026-01-01, `cpu` |"
    assert page.read_text() == PAGE.replace("– |", link)
    assert evidence.main([], lambda: pytest.fail("nothing is left"), run, page) == 0


def test_only_some_are_taken_and_a_name_that_there_is_not_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, asked = made(tmp_path), list[str]()

    def run(piece: evidence.Piece) -> Path:
        asked.append(piece.name)
        return folder(tmp_path)

    assert evidence.main(["one"], lambda: True, run, page) == 0
    assert asked == ["one-a"]
    assert evidence.main(["three"], lambda: True, run, page) == 2
    assert wording(capsys.readouterr().err)


def measured(place: Path, **speedups: tuple[float, float, float] | None) -> Path:
    """A folder with rows over AR."""
    names = ("value", "low", "high")
    rows = [
        {"method": name, "tokens_per_forward": 2.0, "speedup": ends and dict(zip(names, ends, strict=True))}
        for name, ends in speedups.items()
    ]
    place.mkdir(parents=True)
    (place / "summary.json").write_text(json.dumps({"rows": rows, "disturbed": None}))
    return place


def test_a_repetition_stands_next_to_what_is_linked_and_links_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, asked = made(tmp_path), list[str]()
    measured(tmp_path / "x", ar=(1, 1, 1), pld=(1.5, 1.4, 1.6), jf=(1.3, 1.2, 1.4), cllm=None, gone=(1, 1, 1))
    again = measured(tmp_path / "y", ar=(1, 1, 1), pld=(1.3, 1.2, 1.4), jf=(1.1, 1.0, 1.19), cllm=(1, 1, 1))

    def run(piece: evidence.Piece) -> Path:
        asked.append(piece.command)
        return again

    assert evidence.main(["one", "--repeat"], lambda: True, run, page) == 0
    assert asked == ["specbench run --method pld --out results/repeated --again"], (
        "a piece without a run is not repeated"
    )
    assert page.read_text() == PAGE
    output = capsys.readouterr().out
    assert all(row in output for row in ("overlap", "apart", "no interval", "1 of 2 intervals overlap"))


def test_a_machine_that_is_not_quiet_measures_nothing_unless_asked_to(tmp_path: Path) -> None:
    page = made(tmp_path)
    assert evidence.main(["two"], lambda: False, lambda piece: pytest.fail("measured"), page) == 1
    assert page.read_text() == PAGE
    assert evidence.main(["two", "--anyway"], lambda: False, lambda piece: folder(tmp_path), page) == 0


def test_a_run_that_was_disturbed_meanwhile_is_not_linked(tmp_path: Path) -> None:
    page = made(tmp_path)
    assert evidence.main(["two"], lambda: True, lambda piece: folder(tmp_path, "a neighbour"), page) == 1
    assert page.read_text() == PAGE


def test_a_sweep_is_disturbed_where_a_part_of_it_is(tmp_path: Path) -> None:
    """The sweep's folder also has files whose names begin like its parts' names."""
    sweep = tmp_path / "sweep"
    for part in ("c1", "c4"):
        (sweep / part).mkdir(parents=True)
        (sweep / part / "summary.json").write_text(json.dumps({"disturbed": {"reasons": []}}))
    (sweep / "cells.csv").write_text("")
    (sweep / "crossing.png").write_bytes(b"")
    assert not evidence.was_disturbed(sweep)
    (sweep / "c4" / "summary.json").write_text(json.dumps({"disturbed": {"reasons": ["a neighbour"]}}))
    assert evidence.was_disturbed(sweep)


@pytest.mark.parametrize(
    "line",
    [
        "| two  | `specbench run` | this | that | – |",
        "| two | `specbench run` | this | that | – | ",
        "| one-a | `specbench run` | this | that | – |",
        "| two | `specbench run` | this | – |",
    ],
)
def test_a_line_that_could_not_be_linked_is_refused_before_anything_is_measured(tmp_path: Path, line: str) -> None:
    page = made(tmp_path)
    page.write_text(PAGE.replace("| two | `specbench run --method jacobi` | this | that | – |", line))
    assert evidence.main([], lambda: True, lambda piece: pytest.fail("measured"), page) == 2


def test_a_profile_is_linked_by_the_day_in_its_name(tmp_path: Path) -> None:
    page = made(tmp_path)
    place = tmp_path / "20260203T000000Z-profile-smollm2-135m-01234567"
    place.mkdir()
    (place / "profile.json").write_text(json.dumps({"environment": {"device": {"name": "cpu"}}}))
    assert evidence.main(["two"], lambda: True, lambda piece: place, page) == 0
    assert f"[20260203T000000Z…-01234567]({place.name}) 2026-02-03, `cpu` |" in page.read_text()


PIECES = evidence.read(evidence.LIST.read_text())


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_a_command_of_the_list_is_one_that_runs(piece: evidence.Piece) -> None:
    """Its methods, options and task are there; the head and the adapters come with the model."""
    words = shlex.split(piece.command)
    assert piece.shows
    assert piece.shows_not
    if words[1] == "profile":  # of a model, and of no method
        assert "--model" in words
        return
    of = {words[at]: words[at + 1] for at in range(2, len(words) - 1) if words[at].startswith("--")}
    labels = of["--method"].split(",")
    given: dict[str, dict[str, str]] = {label: {} for label in labels}
    for at, word in enumerate(words):
        if word == "--set":
            label, _, setting = words[at + 1].partition(".")
            name, _, value = setting.partition("=")
            given.setdefault(label, {})[name] = value
    for label, options in given.items():
        make = make_row if is_row(label) else make_method
        make(label.partition("#")[0], label.partition("#")[0], options)
    assert registry.task(of["--task"])
    assert int(of.get("--limit", 164)) >= 20  # all, where it does not say
