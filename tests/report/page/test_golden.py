"""A report of a fixed record set is the same everywhere; ``pytest --reword`` writes the golden anew.

Of its pictures the golden has the words: how matplotlib writes their lines changes with its version.
"""

from __future__ import annotations

import re
from pathlib import Path

import golden_runs
import pytest
from support.wording import wording

from specbench.report.gathering import gather
from specbench.report.page.build import build
from specbench.report.page.write import RACES, write_report

GOLDEN = Path(__file__).parent / "golden"


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def without_races(found: dict[str, str]) -> dict[str, str]:
    return {name: content for name, content in found.items() if not name.startswith(RACES)}


def without_lines(content: str) -> str:
    """A page or a picture with its drawings' words, a line each, for the drawings."""

    def words(drawing: re.Match[str]) -> str:
        found = re.findall(r'aria-label="[^"]*"|<(?:title|text)\b[^>]*>[^<]*</(?:title|text)>', drawing[0])
        return "\n".join(["<svg>", *found, "</svg>"])

    return re.sub(r"<(text) [^>]*>", r"<\1>", re.sub(r"<svg .*?</svg>", words, content, flags=re.DOTALL))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("report")
    golden_runs.write(runs)
    write_report(build(gather([runs])), out)
    if wording.recording:
        for name, content in without_races(files(out)).items():
            (GOLDEN / name).write_text(without_lines(content))
    return out


def test_the_report_is_the_golden_one(made: Path) -> None:
    golden, found = files(GOLDEN), without_races(files(made))
    assert found.keys() == golden.keys()
    for name, content in golden.items():
        assert without_lines(found[name]).splitlines() == content.splitlines(), name


def test_it_is_the_same_from_elsewhere_and_in_another_order(made: Path, tmp_path: Path) -> None:
    paths = golden_runs.write(tmp_path / "some" / "where")
    write_report(build(gather(reversed(paths))), tmp_path / "out")
    assert files(tmp_path / "out") == files(made)  # lines of drawings and all
