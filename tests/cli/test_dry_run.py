"""``--dry-run`` of ``run`` and ``sweep``: a table at once, without torch, and nothing made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TINY = ("--model", "config:tiny", "--task", "humaneval", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_of_a_run(cli: Any) -> None:
    result = cli.ok("run", *TINY, "--method", "lookahead,msn", "--concurrency", 4, "--dry-run", "--json")
    found = json.loads(result.out)
    assert [(cell["label"], cell["rows"], cell["concurrency"]) for cell in found["cells"]] == [
        ("ar", 1, 4), ("lookahead", 56, 4), ("msn", 69, 4),
    ]  # fmt: skip
    assert (found["capacity"], found["steps"]) == (520, "none")
