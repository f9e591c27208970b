"""The page as a browser shows it: at desktop and phone width, for readers who prefer dark, without a network."""

from __future__ import annotations

import re
from pathlib import Path

import golden_runs
import pandas as pd
import pytest
from support import runs as runs_of_tests
from support.processes import look_at
from support.runs import run_config

from specbench.analysis.read import ReadRun
from specbench.analysis.summary import RunContents, summarise
from specbench.report.gathering import Gathered, gather
from specbench.report.page.build import build
from specbench.report.page.write import write_report
from specbench.sweeps.table import ReadSweep

# Elements that reach beyond the page and are in no box that scrolls; text with little contrast to its ground; drawings
# that are shown so small that their words cannot be read; what was fetched.
LOOK = """(page, inner) => {
  for (const folded of page.querySelectorAll("details")) folded.open = true;
  const pictures = [...page.querySelectorAll("svg, img")];
  const wide = page.documentElement.clientWidth, beyond = [], faint = [], small = [];
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (at) => {
    for (; at; at = at.parentElement) {
      const rgba = colour(inner.getComputedStyle(at).backgroundColor);
      if (rgba.length === 3 || rgba[3] > 0.9) return rgba;
    }
    return [255, 255, 255];
  };
  for (const at of page.body.querySelectorAll("*")) {
    const box = at.getBoundingClientRect();
    if (box.width && box.right > wide + 1 && !at.closest(".scroll")) beyond.push(at.outerHTML.slice(0, 80));
    if (at.tagName === "svg" && box.width < 0.9 * at.viewBox.baseVal.width) small.push(box.width);
    const words = [...at.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!words || !box.width || ["STYLE", "title"].includes(at.tagName)) continue;
    const look = inner.getComputedStyle(at), drawn = at.namespaceURI.endsWith("svg");
    const [a, b] = [light(colour(drawn ? look.fill : look.color)), light(drawn ? [255, 255, 255] : ground(at))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5 || (drawn && a > b)) faint.push(at.textContent.slice(0, 40) + " " + contrast.toFixed(2));
  }
  return {
    width: wide, reaches: page.documentElement.scrollWidth, beyond, faint, small, scripts: page.scripts.length,
    fetched: inner.performance.getEntriesByType("resource").map((one) => one.name.slice(0, 30)),
    ground: inner.getComputedStyle(page.documentElement).backgroundColor,
    headings: [...page.querySelectorAll("h2")].map((one) => one.textContent),
    pictures: pictures.length, turned: pictures.filter((one) => inner.getComputedStyle(one).filter !== "none").length,
  };
}"""


def swept() -> ReadSweep:
    """A sweep of two options."""
    cells = runs_of_tests.measured_grid(speedup=1.5, set="tuning")
    plain = runs_of_tests.cells([{"method": "ar", "set": "tuning"}])
    made = run_config(["jf"], 50)
    read = ReadRun({"environment": {"device": {"name": "a GPU"}}}, made, [], {}, summarise(RunContents(made, [])), [])
    return ReadSweep(Path("a-sweep"), {"concurrency": [1]}, {1: read}, pd.concat([cells, plain], ignore_index=True))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything: runs of all kinds, a sweep, a profile, claims, and a folder that was left out."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("report")
    (golden_runs.write(runs)[0].parent / "torn").mkdir()
    (runs / "torn" / "run.json").write_text('{"a long line without a blank":' + "x" * 300)
    found = gather([runs])
    found = Gathered(found.runs, [swept()], [("a-profile", runs_of_tests.made_up_profile())], found.skipped)
    return write_report(build(found, claims=True), out)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_it_is_legible_and_nothing_overflows(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    seen = look_at(report, width, LOOK, tmp_path, dark=dark)
    assert seen.console == []
    assert seen.found["width"] == pytest.approx(width, abs=20), "less a scroll bar"
    assert seen.found["reaches"] == seen.found["width"]
    assert seen.found["beyond"] == []
    assert seen.found["faint"] == []
    assert seen.found["small"] == []
    assert seen.found["ground"] == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
    assert seen.found["scripts"] == 0
    assert [name for name in seen.found["fetched"] if not name.startswith("data:")] == []
    assert {"At a glance", "Sweeps", "Profiles", "Published claims", "What the words mean"} < set(
        seen.found["headings"]
    )
    assert seen.found["pictures"] > 15
    assert seen.found["turned"] == (seen.found["pictures"] if dark else 0), "no white sheet on a dark page"


def test_it_names_nothing_outside_of_itself_and_runs_write_no_markup(report: Path) -> None:
    text = report.read_text()
    races = re.findall(r'(?:href|src)="((?!#|data:)[^"]*)"', text)
    assert races
    assert {str(path.relative_to(report.parent)) for path in report.parent.glob("report_races/*")} == {*races}
    assert "@import" not in text
    assert "url(" not in text
    text = report.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "a judge &lt;b&gt;" in text
