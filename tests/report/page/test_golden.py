"""A report of a fixed record set is the same bytes everywhere; ``SPECBENCH_GOLDEN=write`` writes the golden anew."""

from __future__ import annotations

import os
from pathlib import Path

import golden_runs
import pytest

from specbench.report.gathering import gather
from specbench.report.page.build import build
from specbench.report.page.write import write_report

GOLDEN = Path(__file__).parent / "golden"


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("report")
    golden_runs.write(runs)
    write_report(build(gather([runs])), out)
    if os.environ.get("SPECBENCH_GOLDEN") == "write":
        write_report(build(gather([runs])), GOLDEN)
    return out


def test_the_report_is_the_golden_one(made: Path) -> None:
    golden, found = files(GOLDEN), files(made)
    assert found.keys() == golden.keys()
    for name, content in golden.items():
        assert found[name].decode().splitlines() == content.decode().splitlines(), name
        assert found[name] == content, name


def test_it_is_the_same_from_elsewhere_and_in_another_order(made: Path, tmp_path: Path) -> None:
    paths = golden_runs.write(tmp_path / "some" / "where")
    write_report(build(gather(reversed(paths))), tmp_path / "out")
    assert files(tmp_path / "out") == files(made)
