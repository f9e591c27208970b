"""A race in the terminal: as a film where it can move, as a table where it cannot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support import runs
from support.wording import wording

from specbench.report.race import Arrival, Lane, Race, race
from specbench.report.terminal.generation import Token
from specbench.report.terminal.race import Standing, play


@pytest.fixture
def found(tmp_path: Path) -> Race:
    read = runs.read_race(tmp_path)
    return race(read.config, read.records, ["ar", "pld"], "p/0")


def _printed(found: Race, columns: int, *, terminal: bool = False, speed: float = 1.0) -> tuple[str, list[float]]:
    file, waited, now = io.StringIO(), [], [0.0]

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    console = Console(
        file=file, width=columns, height=30, force_terminal=terminal, highlight=False, legacy_windows=False
    )
    play(console, found, speed, lambda: now[0], sleep)
    return file.getvalue(), waited


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_without_a_terminal_it_is_a_table_and_the_answers(found: Race, columns: int) -> None:
    said, waited = _printed(found, columns)
    assert waited == []
    assert max(map(len, said.splitlines())) <= columns
    assert all(line.isprintable() for line in said.splitlines())
    assert "7.50 s" in said
    if columns >= 80:
        assert wording(said)
        assert "· 1.8 tok/s" in said
    assert "\\x1b[31m" in said
    assert "\\u202e" in said
    assert "<b>four</b>" in said


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 7.5), (3.0, 2.5)])
def test_in_a_terminal_it_takes_its_time(found: Race, speed: float, seconds: float) -> None:
    said, waited = _printed(found, 80, terminal=True, speed=speed)
    assert sum(waited) == pytest.approx(seconds, abs=0.06)
    assert "\x1b[31m" not in said.replace("\\x1b[31m", ""), "what a model wrote moves no colours"
    assert ("3 times as fast as it was" in said) == (speed == 3.0)


def test_at_a_moment_only_what_had_come_is_seen(found: Race) -> None:
    file = io.StringIO()
    Console(file=file, width=80, height=30).print(Standing(found, 1.6))
    said = file.getvalue()
    assert "One two" in said
    assert said.count("three") == 1, "pld has it, ar has not"
    assert "four" not in said
    assert wording(said)


def test_markup_of_a_label_is_text(found: Race) -> None:
    lanes = [type(lane)("[bold]x[/bold]", lane.arrivals) for lane in found.lanes]
    said, _ = _printed(Race("[red]p", lanes), 80)
    assert said.count("[bold]x[/bold]") >= 3
    assert "[red]p" in said


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 20])
def test_a_terminal_narrower_than_its_lanes_is_no_error(found: Race, columns: int) -> None:
    said, _ = _printed(Race(found.prompt, [*found.lanes, *found.lanes]), columns, terminal=True, speed=10)
    assert "\x1b[?25h" in said, "the cursor is back"


def test_of_a_long_answer_only_the_end_is_laid_out(found: Race) -> None:
    """A picture of a hundred thousand tokens takes no longer than one of a thousand, and shows the same end."""
    arrivals = [Arrival(at / 10, [Token(at, f" word{at}", "lookup", False)]) for at in range(100_000)]
    lane = Lane("pld", arrivals)
    assert len(lane.end_of(100_000, 800)) < 300
    assert lane.end_of(30, 800) == [token for arrival in arrivals[:30] for token in arrival.tokens]
    file = io.StringIO()
    Console(file=file, width=80, height=20).print(Standing(Race("p", [lane, lane]), 1e9))
    lines = file.getvalue().splitlines()
    assert lines[-1].count("word99999") == 2
    assert all(line.strip() for line in lines[5:]), "its lines are full"
