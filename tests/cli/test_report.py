"""``specbench report``: what it writes, what it says, and how long a hundred thousand requests take."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.runs import CURATED, EXACT, RESULTS, answers, folder, run_config


def made(out: Path) -> Path:
    records = [*answers("ar", 8, decode_s=1.0), *answers("pld", 8, decode_s=0.5, target_forwards=8)]
    return folder(out, run_config(["pld"], 8), records, lossless=dict.fromkeys(["ar", "pld"], EXACT))


def test_it_writes_three_files_and_names_the_page(cli: Any, tmp_path: Path) -> None:
    result = cli("report", made(tmp_path / "runs"), "--out", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    assert result.out.strip() == str(tmp_path / "out" / "report.html")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "report.html", "report.md", "report.csv", "report_pictures",
    }  # fmt: skip


@pytest.mark.parametrize("runs", [CURATED[:1], pytest.param(CURATED, marks=pytest.mark.slow)], ids=["one", "all"])
def test_the_same_runs_are_the_same_bytes_and_every_figure_has_a_name(
    cli: Any, tmp_path: Path, runs: list[Path]
) -> None:
    pages = [tmp_path / name / "report.html" for name in ("a", "b")]
    assert cli("report", *runs, "--claims", "--out", pages[0].parent).code == 0
    # The other one in a process that could not import torch if it wanted to.
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specbench.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["report", *map(str, runs), "--claims", "--out", str(pages[1].parent)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    for suffix in (".html", ".md", ".csv"):
        assert pages[0].with_suffix(suffix).read_bytes() == pages[1].with_suffix(suffix).read_bytes()
    assert str(RESULTS.parent) not in pages[0].read_text()

    rows = list(csv.DictReader(pages[0].with_suffix(".csv").open()))
    names = Counter((row["table"], row["run"], row["row"], row["figure"]) for row in rows)
    assert {name: count for name, count in names.items() if count > 1} == {}
    tables = {row["table"] for row in rows}
    assert "overview" in tables
    assert any(name.startswith("claims ") for name in tables)
    assert "claims ar" not in tables
    assert max(len(row["row"]) for row in rows) < 120


def test_claims_stand_next_to_the_row_of_their_method(cli: Any, tmp_path: Path) -> None:
    assert cli("report", made(tmp_path / "runs"), "--claims", "--out", tmp_path / "out").code == 0
    rows = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    mine = [row for row in rows if row["table"] == "claims pld"]
    here = {row["value"] for row in mine if row["figure"] == "tpf_here"}
    assert here == {"3", "2.77778"}, "Spec-Bench counts the prefill and its token: 25 over 9"
    differs = [row["text"] for row in mine if row["figure"] == "differs"]
    assert differs
    assert all("task: humaneval, not spec-bench" in text for text in differs)
    assert {row["text"] for row in mine if row["figure"] == "tpf_verdict"} == {"not comparable"}
    pages = {row["row"]: row["text"] for row in mine if row["figure"] == "url"}
    assert pages.keys() == {row["row"] for row in mine}, "every row has the address of its page"
    for name in ("report.html", "report.md"):
        text = (tmp_path / "out" / name).read_text().replace("\\", "")
        assert all(url in text for url in pages.values()), name


def test_a_table_is_not_written_to_a_folder(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    error = cli.refused(2, "report", tmp_path / "no run", "--to", "csv", "--out", tmp_path / "out")
    assert "--out" in error, "before any run is read"
    assert not [*(tmp_path / "out").iterdir()]
