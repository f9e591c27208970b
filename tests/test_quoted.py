"""Every figure with an interval that a page quotes is in the run, sweep or record that its section names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.results import read_run, summarise
from specbench.results.pooled import Cost, poolable, pooled
from specbench.results.read import ReadRun
from specbench.results.summary_schema import RunSummary, Speedup
from specbench.results.sweep_folder import is_sweep
from specbench.sweeps import read_sweep

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "reports" / "README.md"),
    *sorted(page for room in ("docs", "methods", "tasks") for page in (ROOT / room).rglob("*.md")),
]

#: "1.32 [1.22, 1.42]", over the end of a line too.
FIGURE = re.compile(r"(\d+\.\d+)\s+\[(\d+\.\d+),\s+(\d+\.\d+)\]")


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Its sections, each with its heading; what is between fences belongs to the section around it."""
    heading, lines, fenced = page.name, list[str](), False
    for line in page.read_text().splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            yield heading, "\n".join(lines)
            heading, lines = line, []
        lines.append(line)
    yield heading, "\n".join(lines)


QUOTING = [
    pytest.param(page, text, id=f"{page.relative_to(ROOT)} {heading.strip('# ')}")
    for page in PAGES
    for heading, text in sections(page)
    if FIGURE.search(text)
]


def named(page: Path, text: str) -> list[Path]:
    """Runs, sweeps and folders of records that a section links to."""
    links = (page.parent / link for link in re.findall(r"\]\(([^)#]+)", text))
    places = [link.resolve() for link in links if not str(link).startswith("http")]
    records = [place if place.is_dir() else place.parent for place in places if "records" in place.parts]
    return [place for place in places if place.parent == ROOT / "results" and place.is_dir()] + records


@cache
def read_once(place: Path) -> ReadRun:
    """A run without its traces; several sections quote the same one."""
    return read_run(place, traces=False)


@cache
def figures(place: Path) -> frozenset[tuple[str, str, str]]:
    """All figures with intervals of a run, by today's method from its records; of a sweep, of its table and parts."""
    if is_sweep(place):
        rows = read_sweep(place).cells.to_dict("records")
        cells = {
            _said(row["speedup"], row[f"{ends}_low"], row[f"{ends}_high"])
            for row in rows
            for ends in ("speedup", "chosen")
        }
        parts = (RunSummary.model_validate_json(file.read_text()) for file in place.glob("c*/summary.json"))
        speedups = [speedup for part in parts for row in part.rows for speedup in _speedups(row)]
        return frozenset(cells | {_said(each.value, each.low, each.high) for each in speedups})
    read = read_once(place)
    summary = summarise(read.config, read.records, read.verdicts or None)
    speedups = [speedup for row in summary.rows for speedup in _speedups(row)]
    own = {_said(each.value, each.low, each.high) for each in speedups}
    together = {_said(each.value, each.among.low, each.among.high) for each in speedups if each.among}
    return frozenset(own | together)


def _speedups(part: Any) -> Iterator[Speedup]:
    if isinstance(part, Speedup):
        yield part
        return
    inside = vars(part).values() if hasattr(part, "model_fields_set") else part if isinstance(part, list) else ()
    for each in inside:
        yield from _speedups(each)


def _said(value: Any, low: Any, high: Any) -> tuple[str, str, str]:
    return tuple("–" if each is None else f"{each:.2f}" for each in (value, low, high))  # type: ignore[return-value]


def _numbers(content: Any) -> Iterator[float]:
    if isinstance(content, float):
        yield content
    elif isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from _numbers(each)


@pytest.fixture
def summarised(page: Path, text: str) -> None:
    """The runs that a section names, summarised anew: as a fixture, what that takes is no test's time."""
    for place in named(page, text):
        if place.name != "records":
            figures(place)


@pytest.mark.usefixtures("summarised")
@pytest.mark.parametrize(("page", "text"), QUOTING)
def test_a_quoted_figure_is_in_the_run_that_its_section_names(page: Path, text: str) -> None:
    assert_quoted(page, text)


def assert_quoted(page: Path, text: str) -> None:
    places = named(page, text)
    assert places, "figures with intervals, and no run that they are of"
    of_records = {number for place in places if place.name == "records" for number in recorded(place)}
    known = {figure for place in places if place.name != "records" for figure in figures(place)}
    known |= of_all([place for place in places if (place / "run.json").exists()])
    missing = [found for found in FIGURE.findall(text) if found not in known and not of_records.issuperset(found)]
    assert not missing, f"in none of {[place.name for place in places]}"


def of_all(places: list[Path]) -> set[tuple[str, str, str]]:
    """The pooled figures of a section's runs, where these differ in their tasks alone."""
    reads = [read_once(place) for place in places]
    if len(reads) < 2 or not all(poolable(reads[0].config, read.config) for read in reads[1:]):
        return set()
    costs: list[dict[str, dict[str, Cost]]] = []
    for read in reads:
        mine: dict[str, dict[str, Cost]] = {spec.label: {} for spec in read.config.methods}
        for one in read.records:
            mine[one.method][one.prompt_id] = mine[one.method].get(one.prompt_id, Cost()).with_(one)
        costs.append(mine)
    return {_said(row.speedup.value, row.speedup.low, row.speedup.high) for row in pooled(costs) if row.speedup}


@cache
def recorded(place: Path) -> frozenset[str]:
    """Numbers of a folder of records, to two digits."""
    return frozenset(
        f"{number:.2f}" for file in place.glob("*.json") for number in _numbers(json.loads(file.read_text()))
    )


def test_pages_quote_something_and_a_figure_that_is_not_in_its_run_is_found() -> None:
    assert len(QUOTING) >= 3
    page, text = next((page, text) for page in PAGES for _, text in sections(page) if FIGURE.search(text))
    changed = FIGURE.sub("9.99 [9.98, 9.99]", text, count=1)
    with pytest.raises(AssertionError, check=wording):
        assert_quoted(page, changed)
