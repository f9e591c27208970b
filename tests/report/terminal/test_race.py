"""A race in the terminal: as a film where it can move, as a table where it cannot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support import runs
from support.wording import wording

from specbench.report.answers.race import Race, race
from specbench.report.answers.race_view import Standing, play_race


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
    play_race(console, found, speed, lambda: now[0], sleep)
    return file.getvalue(), waited


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_without_a_terminal_it_is_a_table_and_the_answers(found: Race, columns: int) -> None:
    text, waited = _printed(found, columns)
    assert waited == []
    assert max(map(len, text.splitlines())) <= columns
    assert all(line.isprintable() for line in text.splitlines())
    assert "7.50 s" in text
    if columns >= 80:
        assert wording(text)
        assert "· 1.8 tok/s" in text
    assert "\\x1b[31m" in text
    assert "\\u202e" in text
    assert "<b>four</b>" in text


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 7.5), (3.0, 2.5)])
def test_in_a_terminal_it_takes_its_time(found: Race, speed: float, seconds: float) -> None:
    text, waited = _printed(found, 80, terminal=True, speed=speed)
    assert sum(waited) == pytest.approx(seconds, abs=0.06)
    assert "\x1b[31m" not in text.replace("\\x1b[31m", ""), "what a model wrote moves no colours"
    assert ("3 times real speed" in text) == (speed == 3.0)


def test_at_a_moment_only_what_had_come_is_seen(found: Race) -> None:
    file = io.StringIO()
    Console(file=file, width=80, height=30).print(Standing(found, 1.6))
    text = file.getvalue()
    assert "One two" in text
    assert text.count("three") == 1, "pld has it, ar has not"
    assert "four" not in text
    assert wording(text)


def test_long_lines_of_an_answer_make_no_picture_taller(found: Race) -> None:
    file = io.StringIO()
    Console(file=file, width=40, height=30).print(Standing(found, found.end_s))
    assert len(file.getvalue().splitlines()) == 2 + 3 + 22  # clock, head of each lane, and answers in 30 - 8 lines
