"""``score``: verdicts anew, from the texts that are there; nothing else of a run changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

TINY = ["--model", "config:tiny", "--max-new-tokens", "4"]


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    argv = ("--method", "jacobi", "--limit", 2, "--first", "--no-score")
    folder: Path = cli.made(tmp_path_factory.mktemp("runs"), "run", *TINY, *argv)
    cli.ok("score", folder)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_scoring_again_changes_nothing(cli: Any, copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    result = cli.ok("score", copy)
    assert wording(result.err)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_text_that_is_right_now_counts_and_what_was_measured_stays(cli: Any, copy: Path) -> None:
    lines = [json.loads(line) for line in (copy / "requests.jsonl").read_text().splitlines()]
    right = "    " + "\n    ".join(
        [
            "for i, a in enumerate(numbers):", "    for b in numbers[i + 1:]:", "        if abs(a - b) < threshold:",
            "            return True", "return False",
        ]
    )  # fmt: skip
    for line in lines:
        if (line["method"], line["prompt_id"]) == ("jacobi", "HumanEval/0"):
            line["text"] = right
    (copy / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    old = summary(copy)
    result = cli.ok("score", copy, "--json")
    new = summary(copy)
    assert json.loads(result.out)["summary"] == new
    assert [row["accuracy"]["passed"] for row in new["rows"]] == [0, 1]
    for before, after in zip(old["rows"], new["rows"], strict=True):
        assert {k: v for k, v in before.items() if k not in ("accuracy", "accuracy_difference", "metrics")} == {
            k: v for k, v in after.items() if k not in ("accuracy", "accuracy_difference", "metrics")
        }


def test_a_task_without_a_verdict_cannot_be_scored(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Once upon a time"}\n')
    folder = cli.made(tmp_path / "runs", "run", *TINY, "--method", "ar", "--task", "prompts", "--data-file", file)
    result = cli("score", folder)
    assert result.code == 2
    assert wording(result.err)


def test_a_part_of_a_sweep_keeps_what_the_search_found(cli: Any, tmp_path: Path) -> None:
    grid = ("--method", "jacobi", "--grid", "n=2,4", "--limit", 2, "--first", "--held-out", 1, "--no-score")
    cli.ok("sweep", *TINY, *grid, "--out", tmp_path)
    (sweep,) = tmp_path.glob("sweep-*")
    part = sweep / "c1"
    old = summary(part)
    assert old["sweep"]["best"]
    cli.ok("score", part)
    new = summary(part)
    # Of those to choose by, not of the one held out.
    assert [row["accuracy"]["scored"] for row in new["rows"]] == [2, 2, 2]
    for row in (*new["rows"], *old["rows"]):
        for judged in ("accuracy", "accuracy_difference", "metrics"):
            del row[judged]
    assert new == old
    # Elsewhere no one knows which prompts the sweep chose by, and nothing is scored.
    alone = Path(shutil.copytree(part, tmp_path / "alone"))
    assert wording(cli.refused(2, "score", alone))
