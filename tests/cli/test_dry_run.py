"""``--dry-run`` of ``run`` and ``sweep``: a table at once, without torch, and nothing made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TINY = ("--model", "config:tiny", "--task", "humaneval", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_of_a_run(cli: Any) -> None:
    said = cli.ok("run", *TINY, "--method", "lookahead,msn", "--concurrency", 4, "--dry-run", "--json")
    found = json.loads(said.out)
    assert [(cell["label"], cell["rows"], cell["concurrency"]) for cell in found["cells"]] == [
        ("ar", 1, 4), ("lookahead", 56, 4), ("msn", 69, 4),
    ]  # fmt: skip
    assert (found["capacity"], found["steps"]) == (520, "none")


def test_a_pair_is_as_wide_as_the_wider_one_and_what_makes_none_is_refused(cli: Any) -> None:
    rows = ("--method", "suffix,suffix,recycling")
    fallback, retrieve = (
        "suffix#2.fallback=recycling budget=9 warm=true",
        "recycling.retrieve=suffix k=99 tree=true factor=9",
    )
    said = cli.ok(
        "run", *TINY, *rows, "--set", fallback, "--set", retrieve, "--set", "recycling.B=20", "--dry-run", "--json"
    )
    assert {cell["label"]: cell["rows"] for cell in json.loads(said.out)["cells"]} == {
        "ar": 1, "suffix": 13, "suffix#2": 13, "recycling": 100,
    }  # fmt: skip
    for value, says in (
        ("recyclin", "did you mean recycling?"),
        ("recycling B=1", "'budget' of recycling"),
        ("msn", "msn cannot draft beside"),
    ):
        assert says in cli.refused(
            2, "run", *TINY, "--method", "suffix", "--set", f"suffix.fallback={value}", "--dry-run"
        )


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specbench.cli.app import main\n"
        "line = 'sweep --method jf --grid n=8,256 --grid pool=1,16 --dry-run --json --model'\n"
        "sys.exit(main([*line.split(), 'smollm2-135m']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [cell["rows"] for cell in json.loads(done.stdout)["cells"]] == [1, 16, 121, 512, 4337]
