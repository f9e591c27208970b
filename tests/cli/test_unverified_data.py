"""Tasks whose data files may be any, run, shown and scored on dummy weights: which file it was is told everywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import small_data
from small_data import mathematics, speed
from support.runs import requests_on_disk
from support.wording import wording

TINY = ("run", "--model", "config:tiny", "--max-new-tokens", 8, "--method", "jacobi")


def file(folder: Path, name: str, rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(small_data.lines(rows))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "run.json").read_text())["task"]["data"])


@pytest.mark.slow
def test_a_run_of_aime25_is_scored_and_shown_and_by_no_other_file(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="needs pip install 'specbench-llm[eval]'")
    path = file(tmp_path / "data", "aime25.jsonl", mathematics.AIME)
    said = cli.ok(*TINY, "--task", "aime25", "--limit", 2, "--data-dir", path.parent, "--out", tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    known = {"name": "aime25.jsonl", "sha256": sha256(path), "bytes": path.stat().st_size}
    assert recorded(run) == [{**known, "revision": None, "verified": False}]
    unverified = f"data unverified: aime25.jsonl, sha256 {sha256(path)}."
    for text in (said.out, cli.ok("show", run).out):
        assert unverified in " ".join(text.split())
        assert "math-verify" in text
    verdicts = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["also"] for verdict in verdicts] == [{"exact_match": False}] * 4
    cli.ok("score", run, "--data-dir", path.parent)

    other = file(tmp_path / "other", "aime25.jsonl", [*mathematics.AIME[:-1], {**mathematics.AIME[-1], "answer": "1"}])
    error = cli.refused(2, "score", run, "--data-dir", other.parent)
    assert all(part in error for part in (f"{sha256(path)}", f"{sha256(other)}"))
    assert error.endswith("name the folder of that file with --data-dir")

    cli.ok("report", run, "--out", tmp_path / "report")
    for name in ("index.html", "report.md"):
        found = [page for page in (tmp_path / "report").rglob("*") if page.suffix == Path(name).suffix]
        assert any(f"aime25.jsonl, sha256 {sha256(path)}" in page.read_text() for page in found)


def test_a_run_of_speed_bench_takes_the_users_file_or_folder(cli: Any, tmp_path: Path) -> None:
    path = file(tmp_path / "data", "speed_bench_throughput_1k.jsonl", speed.THROUGHPUT)
    command = (*TINY, "--task", "speed-bench", "--task-set", "speed-bench.split=throughput_1k")
    runs = []
    for at, where in enumerate((("--data-file", path), ("--data-dir", path.parent))):
        out = tmp_path / f"runs-{at}"
        said = cli.ok(*command, *where, "--out", out)
        (run,) = out.iterdir()
        runs.append(run)
        assert [entry["name"] for entry in recorded(run)] == [path.name]
        assert str(tmp_path) not in (run / "run.json").read_text()
        assert wording(said.out)
        lines = said.out.splitlines()
        below = lines[next(at for at, line in enumerate(lines) if line.startswith("group ")) + 2 :]
        groups = [line.split()[0] for line in below if line.strip() and not line.startswith(" ")]
        assert groups[:4] == [*speed.TIERS, "overall"], said.out
    texts = [[row["output_ids"] for row in requests_on_disk(run)] for run in runs]
    assert texts[0] == texts[1]
    assert cli.refused(3, *command, "--out", tmp_path / "none").endswith(
        "set SPECBENCH_DATA or --data-dir to a folder that holds it (published at "
        "https://huggingface.co/datasets/nvidia/SPEED-Bench)"
    )
    raw = file(tmp_path / "raw", "x.jsonl", [{**speed.THROUGHPUT[0], "turns": [speed.PLACEHOLDER]}])
    error = cli.refused(2, *command, "--data-file", raw, "--out", tmp_path / "none")
    assert "x.jsonl line 1" in error
    assert wording(error)


def test_a_run_of_codesearchnet_stops_before_the_next_instruction(cli: Any, tmp_path: Path) -> None:
    path = file(tmp_path / "data", "codesearchnet_python_test.jsonl", speed.FUNCTIONS)
    cli.ok(*TINY, "--task", "codesearchnet", "--data-dir", path.parent, "--out", tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    assert [entry["sha256"] for entry in recorded(run)] == [sha256(path)]
    assert json.loads((run / "run.json").read_text())["task"]["options"] == {"style": "cllm"}
    assert len(requests_on_disk(run)) == 2 * len(speed.FUNCTIONS)
    assert wording(cli.refused(2, "score", run))
