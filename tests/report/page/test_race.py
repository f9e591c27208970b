"""The page of a race in a browser: it plays, obeys its slider, needs no network, runs nothing but its own script."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import runs
from support.processes import look_at

from specbench.analysis.read import ReadRun
from specbench.report.answers.generation import Token
from specbench.report.answers.race import Arrival, Lane, Race, race
from specbench.report.answers.race_page import race_page, write_race

LOOK = """(page, inner) => {
  const slider = page.getElementById("time"), at = (value) => {
    slider.value = String(value);
    slider.dispatchEvent(new inner.Event("input"));
    return [...page.querySelectorAll(".lane")].map((lane) => [
      [...lane.querySelectorAll(".answer span")].filter((one) => !one.hidden).map((one) => one.textContent).join(""),
      lane.querySelector(".count").textContent, lane.classList.contains("done"),
    ]);
  };
  return {
    begins: page.getElementById("play").textContent, start: at(0), half: at(1000 * 3.6 / 7.5), end: at(1000),
    back: at(0), beyond: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    ground: inner.getComputedStyle(page.documentElement).backgroundColor, marked: page.querySelectorAll("b").length,
    clock: page.getElementById("clock").textContent, ran: inner.ran === undefined ? "" : inner.ran,
    fetched: inner.performance.getEntriesByType("resource").length,
  };
}"""


@pytest.fixture
def read(tmp_path: Path) -> ReadRun:
    return runs.read_race(tmp_path)


@pytest.fixture
def found(read: ReadRun) -> Race:
    return race(read.config, read.records, ["ar", "pld"], "p/0")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_shows_each_token_when_it_came(found: Race, read: ReadRun, tmp_path: Path, width: int, dark: bool) -> None:
    page = write_race(found, read, tmp_path / "race.html")
    seen = look_at(page, width, LOOK, tmp_path, dark=dark)
    assert seen.console == []
    look = seen.found
    assert look["begins"] == "Pause"
    assert look["start"] == [["", "0 tokens · 0 forwards", False]] * 2 == look["back"]
    assert look["half"] == [
        ["One two three <b>four</b>", "4 tokens · 3 forwards · 1.0 tok/s", False],
        ["One two three <b>four</b>\nfive\\x1b[31m six", "7 tokens · 3 forwards · 1.9 tok/s", False],
    ]
    assert [lane[2] for lane in look["end"]] == [True, True]
    assert look["end"][0][0] == look["end"][1][0]
    assert look["end"][1][1] == "8 tokens · 4 forwards · 1.8 tok/s"
    assert (look["beyond"], look["marked"], look["fetched"], look["clock"]) == (0, 0, 0, "0.00 s")
    assert look["ground"] == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")


def test_a_model_cannot_end_the_data_or_run_a_script(read: ReadRun, tmp_path: Path) -> None:
    hostile = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\u2028"
    lane = Lane(hostile, [Arrival(0.5, [Token(1, hostile, "bonus", False)])])
    page = tmp_path / "race.html"
    named = read.config.model.model_copy(update={"name": hostile})
    read = replace(read, config=read.config.model_copy(update={"model": named}))
    page.write_text(race_page(Race(hostile, [lane, lane], [hostile]), read))
    look = LOOK.replace("1000 * 3.6 / 7.5", "1")
    seen = look_at(page, 800, look, tmp_path)
    assert seen.console == []
    assert (seen.found["ran"], seen.found["end"][0][0]) == ("", hostile.replace("\u2028", "\\u2028"))
    text = page.read_text()
    assert text.count("<script") == 2
    assert re.findall(r'(?:href|src)="', text) == []


def test_without_scripts_the_answers_are_there(found: Race, read: ReadRun) -> None:
    text = race_page(found, read)
    body = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert body.count("&lt;b&gt;four&lt;/b&gt;") == 2
    assert "7.50 s" in body
